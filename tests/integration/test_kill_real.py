"""SIGKILL without stand-ins: the real judge, its sandboxed builder and runners, and a candidate in C++."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.model.verdict import EntryKind, Verdict
from tests.integration.kills import check
from tests.site import Site, site_in

DEADLINE_S = 600.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path, stub=False) as site:
        site.submit("w01", "t/one", "a plain loop")
        yield site


def passed(site: Site) -> None:
    """Assert that the candidate has exactly one evaluation by the real judge, which passed."""
    (evaluation,) = [entry for entry in site.entries() if entry.kind is EntryKind.EVALUATION]
    assert evaluation.verdict is Verdict.PASSED, evaluation.reason
    assert evaluation.environment is not None
    assert evaluation.environment.sandbox == "bubblewrap"
    check(site, crowned=())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "daemon_continues"),
    [
        ("daemon.after_dispatch:2", False),  # the candidate is being judged
        ("judge.runner_started:2", True),
        ("judge.before_timing:2", True),
        ("judge.answered:2", True),
    ],
)
def test_killed_with_the_whole_stack(site: Site, place: str, daemon_continues: bool) -> None:
    mark = site.scratch / "killed"
    failpoint = {"HARNESS_FAILPOINT": place, "HARNESS_FAILPOINT_MARK": str(mark)}
    killed = site.run("daemon", "--once", extra=failpoint, deadline_s=DEADLINE_S)
    assert mark.exists(), killed.stdout
    assert killed.returncode == (0 if daemon_continues else -signal.SIGKILL), killed.stdout
    site.no_strays()
    second_run = site.run("daemon", "--once", deadline_s=DEADLINE_S)
    assert second_run.returncode == 0, second_run.stdout
    site.no_strays()
    passed(site)


@pytest.mark.slow
def test_runners_that_all_die_at_their_start_end_the_daemon_and_cost_nothing(site: Site) -> None:
    killed = site.run("daemon", "--once", extra={"HARNESS_FAILPOINT": "runner.start"}, deadline_s=DEADLINE_S)
    assert killed.returncode == 2, killed.stdout
    assert "never became ready" in killed.stdout
    site.no_strays()
    assert site.entries() == []
    second_run = site.run("daemon", "--once", deadline_s=DEADLINE_S)
    assert second_run.returncode == 0, second_run.stdout
    site.no_strays()
    passed(site)
