"""Clocks that differ by an hour corrupt neither the order of entries nor a duration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harness.ledger.ledger import Ledger
from harness.model.verdict import EntryKind
from tests.daemon.conftest import Once, kinds
from tests.site import Site

HOUR = timedelta(hours=1)


def set_clock(monkeypatch: pytest.MonkeyPatch, clock_shift: timedelta) -> None:
    """Shift the head's clock against the clock of the workers and judges."""
    defaults = Ledger.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "clock", lambda: datetime.now(UTC) + clock_shift)


@pytest.mark.parametrize("clock_shift", [HOUR, -HOUR])
def test_commits_and_judges_with_another_clock_are_judged_once_and_in_order(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch, clock_shift: timedelta
) -> None:
    set_clock(monkeypatch, clock_shift)
    commits = [site.submit("w01", "t/one", f"number {number} stub: speedup=0.9") for number in range(3)]
    once()
    judged = [entry for entry in site.entries("t/one") if entry.kind is EntryKind.EVALUATION]
    assert [entry.candidate.tree for entry in judged if entry.candidate] == [commit.tree for commit in commits]
    assert all(entry.cost and entry.cost.judge_s == pytest.approx(0.01) for entry in judged)
    once()
    assert kinds(site)[EntryKind.EVALUATION] == 3
