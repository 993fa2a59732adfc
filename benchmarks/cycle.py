"""Measure the time from a commit to its entry on disk, with a real daemon and its judge."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.solution_commits import commit_solution
from harness.git.worktree_places import Place
from harness.ledger.submission import read_outcome
from harness.model.paths import solution_path
from harness.model.process_status import DaemonStatus
from harness.workspace.directories import Workspace
from harness.workspace.status import read_status
from tests.waiting import wait_until

HARNESS = (sys.executable, "-m", "harness")
STANDBY_S = 4.5
"""Pause before a commit. After an evaluation the next runner starts; the measurement begins when it is ready."""


@dataclass
class Cycles:
    """Seconds from each candidate's commit to the queue and to the entry, and its verdict."""

    to_queue: list[float] = field(default_factory=list)
    to_entry: list[float] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)


@contextmanager
def running(workspace: Workspace, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a harness process in a workspace and end it afterwards.

    Args:
        workspace: working directory of the process.
        arguments: arguments of the command `harness`.
    """
    process = subprocess.Popen([*HARNESS, *arguments], cwd=workspace.root, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def cycles(
    workspace: Workspace, problem: str, target: str, worker: str, write: Callable[[Path, int], None], candidates: int
) -> Cycles:
    """Commit candidates one after the other to a workspace with a running daemon; the first is not counted.

    Args:
        workspace: workspace whose branch main contains the problem.
        problem: the problem's key.
        target: target of the solutions.
        worker: author of the commits; its branch must be new.
        write: writes the solution with a number to a directory.
        candidates: number of measured candidates, each with a warm judge and a waiting runner.
    """
    measured = Cycles()
    with Repo(workspace) as repo:
        worktree = worktrees.add(repo, Place(worker, problem), f"agents/main/{worker}/{problem}", repo.tip("main"))
        directory = worktree / solution_path(problem, target)
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(candidates + 1):
            time.sleep(STANDBY_S)
            write(directory, number)
            submission = commit_solution(repo, worktree, problem, target, f"Candidate {number}", {})
            committed_at = time.perf_counter()
            wait_until(lambda: _busy(workspace), deadline_s=30, poll_s=0.005, event="the candidate in the queue")
            queued = time.perf_counter() - committed_at
            file = workspace.outcome_file(problem, target, submission.tree)
            outcome = wait_until(partial(read_outcome, file), deadline_s=300, poll_s=0.005, event="an entry")
            took = time.perf_counter() - committed_at
            wait_until(lambda: None if _busy(workspace) else True, deadline_s=300, event="an idle daemon")
            if number:  # the first measures the baseline, compiles it, confirms
                measured.to_queue.append(queued)
                measured.to_entry.append(took)
                measured.verdicts.append(str(outcome.verdict))
    return measured


def resident_mb(pid: int) -> float:
    """Return the resident set of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _busy(workspace: Workspace) -> bool | None:
    status = read_status(workspace, DaemonStatus)
    return True if status is not None and (status.queued or status.current) else None
