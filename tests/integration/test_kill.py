"""SIGKILL at every failpoint: after a restart each document exists once, the audit passes, and no process is left.

The judge is a stub that has the real protocol and is killed at the real judge's and runner's failpoints;
`test_kill_real.py` does the same with the real judge.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from harness.ledger.spool import read_all
from tests.integration.kills import (
    CASES,
    assert_note_recorded_once,
    assert_unsaved_work_kept,
    assert_worktrees_whole,
    check,
    killed_site,
    places_in,
)
from tests.site import Site

PACKAGE = Path(harness.__file__).parent


WITHOUT_START = sorted(place for place, case in CASES.items() if case.lane not in {"start", "revive"})
UNDER_START = sorted(set(CASES) - set(WITHOUT_START))
OFTEN = {"daemon.after_outcome", "judge.before_timing", "worktree.tree_written"}
"""Failpoints that `make test` covers; `make test-long` covers all."""


def _marked(places: list[str]) -> list[object]:
    return [place if place in OFTEN else pytest.param(place, marks=pytest.mark.slow) for place in places]


@pytest.mark.parametrize("place", _marked(WITHOUT_START))
def test_a_kill_loses_nothing_and_enters_nothing_twice(place: str, template: Site, tmp_path: Path) -> None:
    case = CASES[place]
    with killed_site(template, tmp_path) as killed:
        for earlier in (*case.after, place):
            killed.kill_at(earlier, case)
        killed.run_again(case)
        check(killed.site)
        if case.lane == "hand":
            assert_worktrees_whole(killed.site)
        elif case.lane == "leave":
            assert_unsaved_work_kept(killed.site)


@pytest.mark.parametrize("place", _marked(UNDER_START))
def test_a_kill_under_start_is_recovered(place: str, tunable_template: Site, tmp_path: Path) -> None:
    case = CASES[place]
    with killed_site(tunable_template, tmp_path) as killed:
        # A process that was killed while the run was ending is not restarted; the next start completes its work.
        ended = killed.kill_at(place, case) and not read_all(killed.site.workspace.spool)
        killed.run_again(case, ended=ended)
        check(killed.site, crowned=(), planner_owes=True)
        assert_note_recorded_once(killed.site)


def test_every_failpoint_is_killed_at_and_there_are_enough() -> None:
    planted = {name for file in PACKAGE.rglob("*.py") for name in places_in(file)}
    reached = {place.partition(":")[0] for place in CASES}
    assert planted - reached == set(), "add a failpoint, and a case in kills.py that reaches it"
    assert reached - planted == set(), "a case without its failpoint"
    assert set(CASES) >= OFTEN
    assert len(planted) >= 50
    areas = {name.partition(".")[0] for name in planted}
    assert areas >= {"daemon", "judge", "runner", "ledger", "spool", "worktree", "supervisor"}
