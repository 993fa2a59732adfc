"""Claude as a worker: the real SDK and CLI, confined, through the gateway; only the model is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.model.verdict import EntryKind
from tests.agents import agents_site as its
from tests.scripted_model import Asked, Step, scripted
from tests.site import Site, git, site_in


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as made:
        yield made


def test_a_session_edits_submits_and_reads_the_answer(site: Site) -> None:
    def script(asked: Asked) -> list[Step]:
        assert "t/one" in asked.text
        return [
            *its.kernel("t/one", "stub: verdict=INCORRECT_NUMERICAL"),
            its.submit("first"),
            *its.kernel("t/one", "stub: speedup=1.5"),
            its.submit("second"),
        ]

    site.start("daemon")
    its.assign(site, its.row("t/one"))
    with scripted(script) as model:
        site.start("worker", "w01", "--agent", "claude", extra=its.environment(model))
        its.says(site, "has finished", its.finished("t/one"))
    first, second = [
        each for each in model.asked[-1].results if ("tried" not in each and "x over" in each) or "INCORRECT" in each
    ]
    assert first.startswith("INCORRECT_NUMERICAL")
    assert second.startswith("PASSED 1.5")
    verdicts = [str(e.verdict) for e in site.entries("t/one") if e.kind is EntryKind.EVALUATION]
    assert verdicts == ["INCORRECT_NUMERICAL", "PASSED"]
    assert "Agent: claude" in git(site.root, "log", "-1", "--format=%B", "agents/main/w01/t/one")
    assert model.keys == {its.KEY}
