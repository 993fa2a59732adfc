"""Measure the time from a commit to its ledger entry for candidates that are committed to an idle daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from benchmarks.cycle import running
from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.solution_commits import commit_solution
from harness.git.worktree_places import Place
from harness.ledger.create_workspace import create_workspace
from harness.ledger.ledger import read_records
from harness.ledger.submission import read_outcome
from harness.model.paths import ledger_file, solution_path
from harness.model.process_status import DaemonStatus
from harness.workspace.directories import Workspace
from harness.workspace.status import read_status
from tests.waiting import wait_until

_WORKER = "w01"
_DEADLINE_S = 300.0
_POLL_S = 0.01
_Values = dict[str, object]


def commit_candidates(root: Path, problem: str, count: int) -> Iterator[_Values]:
    """Commit candidates with distinct sources to a workspace with a real daemon, after one that is not counted.

    Args:
        root: directory in which the workspace is created.
        problem: key of a starter problem.
        count: number of counted candidates; none if 0 or less.

    Yields:
        For each candidate: verdict, speed-up, and the seconds in the judge, from commit to entry and to confirmation.
    """
    if count <= 0:
        return
    workspace = create_workspace(root / "workspace").workspace
    with running(workspace, "daemon", "--device", "cpu"), Repo(workspace) as repo:
        worktree = worktrees.add(repo, Place(_WORKER, problem), f"agents/main/{_WORKER}/{problem}", repo.tip("main"))
        source = worktree / solution_path(problem, "cpu") / "kernel.cpp"
        original = source.read_text()
        for number in range(count + 1):
            source.write_text(f"{original}// candidate {number}\n")
            committed_at = time.time()
            submission = commit_solution(repo, worktree, problem, "cpu", f"Candidate {number}", {})
            file = workspace.outcome_file(problem, "cpu", submission.tree)
            outcome = wait_until(partial(read_outcome, file), deadline_s=_DEADLINE_S, poll_s=_POLL_S, event="an entry")
            wait_until(lambda: _is_idle(workspace), deadline_s=_DEADLINE_S, poll_s=_POLL_S, event="an idle daemon")
            if number:  # the first also measures the baselines
                summary = outcome.summary
                ci95_low, ci95_high = (summary.speedup_ci95 if summary else None) or (None, None)
                yield {
                    "verdict": str(outcome.verdict), "reason": outcome.reason,
                    "speedup": summary.speedup if summary else None, "ci95_low": ci95_low, "ci95_high": ci95_high,
                    "judge_s": outcome.cost.judge_s if outcome.cost else 0.0,
                    "to_entry_s": _seconds(outcome.at) - committed_at,
                    "to_confirmation_s": _to_confirmation_s(workspace, repo, problem, outcome.seq, committed_at),
                }  # fmt: skip


def _to_confirmation_s(workspace: Workspace, repo: Repo, problem: str, seq: int, committed_at: float) -> float | None:
    """Return the seconds from a commit to the confirmation of its evaluation; None if it was not confirmed."""
    for entry in read_records(workspace, repo, ledger_file(problem), branch="main"):
        if entry["kind"] == "confirmation" and entry["cites"] == seq:
            return _seconds(str(entry["at"])) - committed_at
    return None


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _is_idle(workspace: Workspace) -> bool | None:
    """Return true once the daemon has neither a candidate nor a confirmation left."""
    status = read_status(workspace, DaemonStatus)
    return None if status is None or status.queued or status.current else True
