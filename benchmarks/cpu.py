"""What the whole system costs on this machine's CPU: `make bench` prints the table of docs/performance.md.

    python -m benchmarks.cpu [--skip ledger,worktrees,...]

Real processes on workspaces of its own in a temporary directory. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks import ledger
from benchmarks.ledger import Figure
from harness.store.creation import create_workspace
from harness.store.files import wait_for
from harness.store.live import read_live
from harness.store.problems import load_problem
from harness.store.repo import Repo
from harness.store.solutions import with_params
from harness.store.submission import read_outcome, solution_dir
from harness.store.workspace import Workspace

PROBLEM = "starter/rmsnorm_h4096"
_STANDBY_S = 4.0
"""After an evaluation the next runner starts up: what is measured begins with one that waits."""
_HARNESS = (sys.executable, "-m", "harness")


def help_time() -> list[Figure]:
    """`harness --help`, ten times."""
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        subprocess.run([*_HARNESS, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return [Figure("harness --help", "0.3 s", f"{statistics.median(times):.2f} s")]


def worktrees(root: Path) -> list[Figure]:
    """235 sparse worktrees of one workspace."""
    workspace = create_workspace(root / "worktrees", starter=True).workspace
    source = workspace.problems / PROBLEM
    files = {
        f"problems/many/p{number:03d}/{path.relative_to(source)}": path.read_bytes()
        for number in range(235)
        for path in source.rglob("*")
        if path.is_file()
    }
    with Repo(workspace) as repo:
        base = repo.commit_files("main", files, "Add 235 problems")
        begin = time.perf_counter()
        for number in range(235):
            problem = f"many/p{number:03d}"
            repo.add_worktree("w01", problem, f"agents/main/w01/{problem}", base)
        took = time.perf_counter() - begin
    return [Figure("235 sparse worktrees", "60 s", f"{took:.1f} s")]


@contextmanager
def running(workspace: Workspace, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A harness process in a workspace, ended afterwards."""
    process = subprocess.Popen([*_HARNESS, *arguments], cwd=workspace.root, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@dataclass(frozen=True)
class _Submitted:
    tree: str
    at: float


def loop(root: Path, candidates: int = 6) -> list[Figure]:
    """A warm daemon and judge: event to queued, commit to entry, memory of daemon and planner."""
    workspace = create_workspace(root / "loop", starter=True).workspace
    with Repo(workspace) as repo, running(workspace, "daemon", "--device", "cpu") as daemon:
        worktree = repo.add_worktree("w01", PROBLEM, f"agents/main/w01/{PROBLEM}", repo.tip("main"))
        directory = solution_dir(worktree, PROBLEM, "cpu")
        text = (directory / "solution.yaml").read_text()
        spec = load_problem(workspace.problems / PROBLEM)
        assert len(spec.workloads) == 6

        def submit(number: int) -> _Submitted:
            changed = with_params(text, {"PREFETCH": number % 3, "UNROLL": (2, 4, 8)[number // 3 % 3], "STREAM": 1})
            (directory / "solution.yaml").write_text(changed)
            submission = repo.commit_solution(worktree, PROBLEM, "cpu", f"Candidate {number}", {})
            return _Submitted(submission.tree, time.perf_counter())

        def outcome(submitted: _Submitted) -> float:
            file = workspace.outcome_file(PROBLEM, "cpu", submitted.tree)
            wait_for(lambda: read_outcome(file), deadline_s=300, what="an entry")
            return time.perf_counter() - submitted.at

        outcome(submit(0))  # measures the baseline, compiles it, confirms
        _idle(workspace)
        to_queue, to_entry = [], []
        for number in range(1, candidates + 1):
            time.sleep(_STANDBY_S)
            submitted = submit(number)
            wait_for(lambda: _busy(workspace), deadline_s=30, poll_s=0.005, what="the candidate in the queue")
            to_queue.append(time.perf_counter() - submitted.at)
            to_entry.append(outcome(submitted))
            _idle(workspace)
        with running(workspace, "planner") as planner:
            wait_for(lambda: read_live(workspace, "planner") or None, deadline_s=60, what="the planner")
            resident = _resident_mb(daemon.pid) + _resident_mb(planner.pid)
    return [
        Figure("event to queued (median of 6)", "0.3 s", f"{statistics.median(to_queue):.2f} s"),
        Figure(
            "commit to entry, starter problem, warm (median; worst)",
            "8 s",
            f"{statistics.median(to_entry):.1f}; {max(to_entry):.1f} s",
        ),
        Figure("daemon and planner, resident", "200 MB", f"{resident:.0f} MB"),
    ]


def _busy(workspace: Workspace) -> bool | None:
    state = read_live(workspace, "daemon")
    return True if state.get("queued") or state.get("current") else None


def _idle(workspace: Workspace) -> None:
    wait_for(lambda: None if _busy(workspace) else True, deadline_s=300, what="an idle daemon")


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip", default="", help="parts to leave out: help, loop, worktrees, ledger")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="harness-bench-"))
    parts: dict[str, Callable[[], list[Figure]]] = {
        "help": help_time,
        "loop": lambda: loop(root),
        "worktrees": lambda: worktrees(root),
        "ledger": lambda: ledger.measure(100_000, 235, root / "ledger"),
    }
    figures: list[Figure] = []
    try:
        for name, part in parts.items():
            if name not in options.skip.split(","):
                print(f"measuring: {name}", flush=True)
                figures += part()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps([vars(figure) for figure in figures], indent=1))
    print(tabulate([(f.what, f.limit, f.seen) for f in figures], headers=("figure", "at most", "seen")))


if __name__ == "__main__":
    main()
