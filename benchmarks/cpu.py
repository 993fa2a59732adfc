"""Measure the system's overheads on this machine's CPU: `make bench` prints the table of docs/performance.md.

    python -m benchmarks.cpu [--skip ledger,worktrees,...]

It runs real processes in temporary workspaces. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

from benchmarks import ledger
from benchmarks.cycle import HARNESS, cycles, resident_mb, running
from benchmarks.ledger import Figure
from harness.formats.problems import load_problem
from harness.formats.solutions import with_params
from harness.git.repo import Repo
from harness.git.worktree_places import Place
from harness.git.worktrees import add
from harness.ledger.create_workspace import create_workspace
from harness.model.process_status import PlannerStatus
from harness.workspace.status import read_status
from tests.waiting import wait_until

PROBLEM = "starter/rmsnorm_h4096"


def help_time() -> list[Figure]:
    """Return the median duration of ten runs of `harness --help`."""
    times = []
    for _ in range(10):
        started_at = time.perf_counter()
        subprocess.run([*HARNESS, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - started_at)
    return [Figure("harness --help", "0.3 s", f"{statistics.median(times):.2f} s")]


def worktrees(root: Path) -> list[Figure]:
    """Return the time to create 235 sparse worktrees of one workspace."""
    workspace = create_workspace(root / "worktrees").workspace
    source = workspace.problems / PROBLEM
    files = {
        f"problems/many/p{number:03d}/{path.relative_to(source)}": path.read_bytes()
        for number in range(235)
        for path in source.rglob("*")
        if path.is_file()
    }
    with Repo(workspace) as repo:
        base = repo.commit_files("main", files, "Add 235 problems")
        started_at = time.perf_counter()
        for number in range(235):
            problem = f"many/p{number:03d}"
            add(repo, Place("w01", problem), f"agents/main/w01/{problem}", base)
        took = time.perf_counter() - started_at
    return [Figure("235 sparse worktrees", "60 s", f"{took:.1f} s")]


def loop(root: Path, candidates: int = 6) -> list[Figure]:
    """Return figures of a warm daemon and judge: time to the queue and to the entry, memory of daemon and planner.

    Args:
        root: directory in which the workspace is created.
        candidates: number of measured candidates.
    """
    workspace = create_workspace(root / "loop").workspace
    assert len(load_problem(workspace.problems / PROBLEM).workloads) == 6

    def write(directory: Path, number: int) -> None:
        file = directory / "solution.yaml"
        values = {"PREFETCH": number % 3, "UNROLL": (2, 4, 8)[number // 3 % 3], "STREAM": 1}
        file.write_text(with_params(file.read_text(), values))

    with running(workspace, "daemon", "--device", "cpu") as daemon:
        measured = cycles(workspace, PROBLEM, "cpu", "w01", write, candidates)
        with running(workspace, "planner") as planner:
            wait_until(lambda: read_status(workspace, PlannerStatus), deadline_s=60, event="the planner")
            resident = resident_mb(daemon.pid) + resident_mb(planner.pid)
    return [
        Figure(f"event to queued (median of {candidates})", "0.3 s", f"{statistics.median(measured.to_queue):.2f} s"),
        Figure(
            "commit to entry, starter problem, warm (median; worst)",
            "8 s",
            f"{statistics.median(measured.to_entry):.1f}; {max(measured.to_entry):.1f} s",
        ),
        Figure("daemon and planner, resident", "200 MB", f"{resident:.0f} MB"),
    ]


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
    print(tabulate([(f.title, f.limit, f.measured) for f in figures], headers=("figure", "at most", "seen")))


if __name__ == "__main__":
    main()
