"""Failpoints at which processes are killed, the way to reach each, and the conditions after a restart."""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.git import worktrees
from harness.git.repo import Repo
from harness.ledger.audit.audit import audit
from harness.model.entry import Entry
from harness.model.process_status import WorkerStatus
from harness.model.verdict import EntryKind
from harness.workspace.notes import Note, leave_note, waiting_notes
from harness.workspace.status import read_status
from tests.site import Site, git
from tests.waiting import wait_until

Lane = Literal["daemon", "judge", "hand", "leave", "start", "revive"]
START = ("start", "--workers", "1", "--agent", "tuner", "--device", "cpu", "--max-evaluations", "2")
HAND = Path(__file__).parent / "hand.py"
UNSAVED = "written and never submitted"


@dataclass(frozen=True)
class Case:
    """A way to reach one failpoint (`place:3`: at the third time).

    `daemon`: the daemon is killed. `judge`: a judge or its runner is killed, and the daemon continues. `hand`: the
    process that makes a worktree and submits. `leave`: the process that replaces a worktree. `start`: any process of
    `harness start`. `revive`: the supervisor, while it restarts a worker that the test has killed.
    """

    lane: Lane
    after: tuple[str, ...] = ()
    """Failpoints of earlier kills, after which this one repairs the remaining state."""


def _cases(lane: Lane, area: str, places: str, after: tuple[str, ...] = ()) -> dict[str, Case]:
    return {f"{area}.{place}": Case(lane, after) for place in places.split()}


CASES: Mapping[str, Case] = {
    **_cases("daemon", "main", "before_command"),
    **_cases("daemon", "daemon", "after_lock before_watch before_judge_start after_judge_start before_scan after_scan"),
    **_cases("daemon", "daemon", "before_problem_kept after_problem_kept after_take before_dispatch after_dispatch"),
    **_cases("daemon", "daemon", "after_answer before_entry after_entry before_outcome after_outcome after_baseline"),
    **_cases("daemon", "daemon", "before_champion after_champion before_attempt_recorded after_attempt_recorded"),
    **_cases("daemon", "daemon", "before_last_flush after_close"),
    **_cases("daemon", "ledger", "after_lock after_open before_append after_append before_commit after_commit"),
    **_cases("daemon", "ledger", "after_flush"),
    **_cases("daemon", "ledger", "before_recovery_drop", after=("ledger.after_commit",)),
    **_cases("daemon", "spool", "after_new_segment before_write half_written before_sync after_sync"),
    **_cases("daemon", "spool", "after_close_segment before_drop after_drop_one after_drop"),
    **_cases("daemon", "spool", "torn_set_aside torn_cut", after=("spool.half_written",)),
    **_cases("daemon", "index", "before_rebuild rebuild_before_commit rebuilt_beside old_removed replaced"),
    **_cases("daemon", "index", "before_commit after_commit"),
    **_cases("daemon", "commit", "tree_written built recorded branch_moved"),
    **_cases("daemon", "checkout", "index_locked files_written index_replaced"),
    **_cases("judge", "judge", "before_device request built artefact_kept standby_taken runner_started"),
    **_cases("judge", "judge", "before_rounds before_timing before_answer answered"),
    **_cases("judge", "runner", "start before_load loaded ready before_call after_done"),
    **_cases("hand", "worktree", "branch_made marked registered sparse_set directory_made linked files_written"),
    **_cases("hand", "worktree", "index_written tree_written commit_written branch_moved index_followed"),
    **_cases("hand", "submit", "before_commit after_commit"),
    **_cases("leave", "worktree", "saved moved_away"),
    **_cases("start", "worktree", "before_add after_add after_champion"),
    **_cases("start", "submit", "after_outcome"),
    **_cases(
        "start", "planner", "decision_recorded note_recorded note_dropped account_recorded before_write after_write"
    ),
    **_cases("start", "supervisor", "before_start part_started:2 before_end"),
    **_cases("start", "supervisor", "told_to_end:3 ended"),
    **_cases("revive", "supervisor", "part_died part_restarted"),
}


def places_in(file: Path) -> list[str]:
    """Return the names of a source file's failpoints.

    Raises:
        AssertionError: a name is not a literal, so that it cannot be listed.
    """
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint":
            (name,) = node.args
            assert isinstance(name, ast.Constant), f"{file}:{node.lineno}: a failpoint's name must be a literal"
            names.append(str(name.value))
    return names


class Killed:
    """A site whose processes are killed at named places."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def kill_at(self, place: str, case: Case) -> bool:
        """Run the process that passes `place` until it is killed there, and wait until all its children have ended.

        Return true if the run continued to its end because the killed process was restarted.
        """
        mark = self.site.scratch / f"killed-{place}"
        self.site.scratch.mkdir(parents=True, exist_ok=True)
        failpoint = {"HARNESS_FAILPOINT": place, "HARNESS_FAILPOINT_MARK": str(mark)}
        code, output = self._run(case.lane, failpoint)
        assert mark.exists(), f"{place} was not reached:\n{output}"
        if case.lane in {"judge", "start"}:  # a process may have been killed and restarted
            assert code in {0, -signal.SIGKILL}, output
        else:
            assert code == -signal.SIGKILL, output
        self.site.no_strays()
        return code == 0

    def run_again(self, case: Case, *, ended: bool = False) -> None:
        """Start again without the failpoint until no work is left, unless the run has `ended`."""
        if not ended:
            code, output = self._run("start" if case.lane == "revive" else case.lane, {})
            assert code == 0, output
        if case.lane != "daemon":
            completed = self.site.call("daemon", "--once")
            assert completed.returncode == 0, completed.stdout
        self.site.no_strays()

    def _run(self, lane: Lane, extra: Mapping[str, str]) -> tuple[int, str]:
        if lane in {"hand", "leave"}:
            action, text = ("work", "stub: speedup=1.1") if lane == "hand" else ("leave", UNSAVED)
            completed = self.site.run_program([sys.executable, str(HAND), action, "w03", "t/one", text], extra=extra)
        elif lane == "start":
            completed = self.site.run(*START, extra=extra)
        elif lane == "revive":
            return self._run_and_kill_a_worker(extra)
        else:
            completed = self.site.run("daemon", "--once", extra=extra)
        return completed.returncode, completed.stdout

    def _run_and_kill_a_worker(self, extra: Mapping[str, str]) -> tuple[int, str]:
        process = self.site.start(*START, extra=extra)
        worker = wait_until(lambda: read_status(self.site.workspace, WorkerStatus, "w01"), event="a worker")
        os.kill(worker.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output


@contextlib.contextmanager
def killed_site(template: Site, directory: Path) -> Iterator[Killed]:
    """Yield a copy of a prepared site."""
    site = Site(directory / "work space", directory / "scratch", commits=list(template.commits))
    shutil.copytree(template.root, site.root, symlinks=True)
    note = Note(problem="t/one", worker="w09", session="s0", text="wider is not faster", at="2026-01-01")
    leave_note(site.workspace, note)
    try:
        yield Killed(site)
    finally:
        site.close()


def check(site: Site, *, crowned: tuple[str, ...] = ("t/one",), planner_owes: bool = False) -> None:
    """Check that each candidate has one evaluation, each of its documents exists once, and the ledger is valid.

    Problems in `crowned` have a candidate with a confirmation, and so a champion. With `planner_owes` the
    planner's records may still be in its spool: a planner that ends during its restart enters them at its next start.
    """
    entries = site.entries()
    evaluated = Counter(
        (entry.problem, entry.candidate.tree)
        for entry in entries
        if entry.kind is EntryKind.EVALUATION and entry.candidate
    )
    assert evaluated == Counter(candidates(site)), "every candidate exactly once"
    assert_once(entries, crowned)
    assert_measured_once(site, entries)
    with Repo(site.workspace) as repo:
        result = audit(site.workspace, repo, branch="main")
    assert result.breaks == []
    assert result.spooled == 0 or planner_owes
    assert result.entries == len(entries)
    assert git(site.root, "status", "--porcelain") == ""
    git(site.root, "fsck", "--no-dangling", "--no-progress")


def candidates(site: Site) -> set[tuple[str, str]]:
    """Return (problem, solution tree) of each commit of the run's branches."""
    submitted = set()
    for branch in git(site.root, "for-each-ref", "--format=%(refname)", "refs/heads/agents/main").split():
        problem = "/".join(branch.split("/")[-2:])
        for commit in git(site.root, "rev-list", branch, "^main").split():
            submitted.add((problem, git(site.root, "rev-parse", f"{commit}:problems/{problem}/solutions/cpu")))
    return submitted


def assert_once(entries: list[Entry], crowned: tuple[str, ...]) -> None:
    """Assert at most one baseline per problem, confirmation per evaluation and champion per confirmation."""
    baselines = Counter(entry.problem for entry in entries if entry.kind is EntryKind.BASELINE)
    assert set(baselines.values()) <= {1}
    for kind in (EntryKind.CONFIRMATION, EntryKind.CHAMPION):
        cited = Counter((entry.problem, entry.cites) for entry in entries if entry.kind is kind)
        assert set(cited.values()) <= {1}, kind
        assert set(crowned) <= {problem for problem, _ in cited}, kind


def assert_measured_once(site: Site, entries: list[Entry]) -> None:
    """Assert that no entry was measured again: a kill costs at most the measurement in progress."""
    counts = Counter((request["kind"], request["solution_dir"], request["problem"]) for request in site.requests())
    repeats = sum(count - 1 for count in counts.values())
    killed_once = sum("kill-once" in commit.text for commit in site.commits)
    assert repeats <= 1 + killed_once, counts
    assert len(counts) <= len(entries)


def assert_worktrees_whole(site: Site) -> None:
    """Assert that the worktree whose creation was interrupted exists, and is linked, sparse and clean."""
    worktree = site.workspace.worktree("w03", "t/one")
    assert "stub: speedup=1.1" in (worktree / "problems/t/one/solutions/cpu/kernel.cpp").read_text()
    assert git(worktree, "status", "--porcelain") == ""
    assert [path.name for path in (worktree / "problems/t").iterdir()] == ["one"]
    assert "prunable" not in git(site.root, "worktree", "list", "--porcelain")


def assert_note_recorded_once(site: Site) -> None:
    """Assert that the lesson that was in the spool is in the ledger once."""
    assert waiting_notes(site.workspace) == []
    assert git(site.root, "show", "main:ledger/lessons/t/one.yaml").count("wider is not faster") == 1


def assert_unsaved_work_kept(site: Site) -> None:
    """Assert that unsubmitted work can still be found."""
    assert not site.workspace.worktree("w03", "t/one").exists()
    with Repo(site.workspace) as repo:
        commits = repo.refs(worktrees.SAVED).values()
        contents = [repo.read(commit, "problems/t/one/solutions/cpu/kernel.cpp") for commit in commits]
    assert any(UNSAVED.encode() in (text or b"") for text in contents)
