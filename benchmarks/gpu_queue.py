"""Measure the throughput of the daemon with a full queue of distinct candidates that no cache contains.

    python -m benchmarks.gpu_queue PART[,PART...] [--device DEVICE | --cluster ADDRESS] [--count 20] [--one-by-one]

Parts: `triton` (3 workloads), `triton14` (14 workloads), `cuda` (a sealed solution, 3 workloads), `cpu` (C++, with
`--device cpu`).

The candidates of a part are submitted at once, after one that each judge has already judged: it measures the baselines
and starts the runners. The time goes from the submission to the last entry, confirmations included. Run it with one
visible GPU and with several, and compare the evaluations per minute. With `--one-by-one` each candidate is submitted
when the daemon is idle, and the time goes from its commit to its entry. An interrupt (SIGINT) prints the figures so
far.
"""

from __future__ import annotations

import argparse
import math
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from benchmarks.cycle import running
from benchmarks.gpu import SOURCE, TRITON, fresh_cuda, problem, solution
from harness.cli.devices import gpu_target
from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.solution_commits import commit_solution
from harness.git.worktree_places import Place
from harness.ledger.create_workspace import create_workspace
from harness.ledger.ledger import read_records
from harness.model.paths import ledger_file, solution_path
from harness.model.process_status import DaemonStatus
from harness.workspace.directories import Workspace
from harness.workspace.status import read_status
from tests.waiting import wait_until

_DEADLINE_S = 500.0
_PARTS = {"triton": (64, 512, 4096), "triton14": tuple(range(32, 480, 32)), "cuda": (64, 512, 4096), "cpu": (64,)}
"""Rows of the workloads of each part."""


@dataclass(frozen=True)
class Throughput:
    """Result of one part."""

    seconds: float
    judge_s: float
    """Seconds that the judges worked on evaluations and confirmations, added up."""
    median_judge_s: float
    """Median of these seconds for one evaluation or confirmation."""
    evaluations: int
    confirmations: int
    verdicts: str
    judges: int


@dataclass(frozen=True)
class Candidates:
    """Distinct candidates of a part, each of a worker of its own.

    Args:
        repo: a repository whose branch main contains the problem.
        part: name of the part.
        target: target of the solutions.
        root: directory for the sources.
    """

    repo: Repo
    part: str
    target: str
    root: Path
    _salt: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def key(self) -> str:
        """Key of the problem."""
        return f"bench/{problem(self.root, _PARTS[self.part]).name}"

    def prepare(self, number: int) -> Path:
        """Write the candidate of this number, and return its worktree."""
        worker = f"{self.part}-{number:02d}"
        worktree = worktrees.add(
            self.repo, Place(worker, self.key), f"agents/main/{worker}/{self.key}", self.repo.tip("main")
        )
        directory = worktree / solution_path(self.key, self.target)
        directory.mkdir(parents=True, exist_ok=True)
        self._write(directory, number)
        return worktree

    def _write(self, directory: Path, number: int) -> None:
        if self.part == "cpu":
            shutil.copytree(SOURCE / "solutions" / "cpu", directory, dirs_exist_ok=True)
            with (directory / "kernel.cpp").open("a") as file:
                file.write(f"// {self._salt} {number}\n")
            return
        if self.part == "cuda":
            source = fresh_cuda(self.root, number)
        else:
            name = f"rms_{self._salt}_{number}"
            text = TRITON.replace("rms(", f"{name}(").replace("rms[(", f"{name}[(")
            source = solution(self.root, f"{self.part}{number}", "triton", text)
        shutil.copytree(source, directory, dirs_exist_ok=True)

    def commit(self, worktree: Path) -> None:
        """Commit the candidate of a worktree, which submits it."""
        commit_solution(self.repo, worktree, self.key, self.target, "Candidate", {})


def measure(workspace: Workspace, candidates: Candidates, count: int) -> Throughput:
    """Submit candidates to a running daemon at once, and wait until none is left.

    Args:
        workspace: workspace of the daemon.
        candidates: of one part.
        count: number of counted candidates.
    """
    judges = _submit_first(workspace, candidates)
    before = _entered(workspace, candidates)
    worktrees_of_all = [candidates.prepare(judges + number) for number in range(count)]
    begin = time.perf_counter()
    for worktree in worktrees_of_all:
        candidates.commit(worktree)
    with suppress(KeyboardInterrupt, TimeoutError):  # what is entered by then is the result
        _wait_for_entries(workspace, candidates, before.evaluations + count)
        _wait_until_idle(workspace, judges + count)
    seconds = time.perf_counter() - begin
    after = _entered(workspace, candidates)
    records = read_records(workspace, candidates.repo, ledger_file(candidates.key), branch="main")
    return Throughput(
        seconds,
        sum(after.judge_s[len(before.judge_s) :]),
        statistics.median(after.judge_s[len(before.judge_s) :] or [math.nan]),
        after.evaluations - before.evaluations,
        after.confirmations - before.confirmations,
        "/".join(sorted({str(entry["verdict"]) for entry in records if entry["kind"] == "evaluation"})),
        judges,
    )  # fmt: skip


def commit_one_by_one(workspace: Workspace, candidates: Candidates, count: int) -> list[float]:
    """Submit each candidate when the daemon is idle, and return the seconds from each commit to its entry.

    Args:
        workspace: workspace of the daemon.
        candidates: of one part.
        count: number of counted candidates.
    """
    judges, seconds = _submit_first(workspace, candidates), []
    with suppress(KeyboardInterrupt, TimeoutError):
        for number in range(judges, judges + count):
            worktree, evaluations = candidates.prepare(number), _entered(workspace, candidates).evaluations
            begin = time.perf_counter()
            candidates.commit(worktree)
            _wait_for_entries(workspace, candidates, evaluations + 1)
            seconds.append(time.perf_counter() - begin)
            _wait_until_idle(workspace, number + 1)
    return seconds


def _submit_first(workspace: Workspace, candidates: Candidates) -> int:
    """Submit a candidate for each judge, which measures the baselines, and return the number of judges."""
    judges = len(wait_until(lambda: _ready_judges(workspace), deadline_s=_DEADLINE_S, event="ready judges"))
    for number in range(judges):
        candidates.commit(candidates.prepare(number))
    _wait_until_idle(workspace, judges)
    return judges


def _wait_for_entries(workspace: Workspace, candidates: Candidates, evaluations: int) -> None:
    wait_until(
        lambda: _entered(workspace, candidates).evaluations >= evaluations or None,
        deadline_s=_DEADLINE_S,
        event="all entries",
    )


@dataclass(frozen=True)
class _Entered:
    """Entries of a problem that were measured, and the seconds that the judges worked on each of them, in order."""

    evaluations: int
    confirmations: int
    judge_s: tuple[float, ...]


def _entered(workspace: Workspace, candidates: Candidates) -> _Entered:
    entries = [
        entry
        for entry in read_records(workspace, candidates.repo, ledger_file(candidates.key), branch="main")
        if not entry.get("answered_from")
    ]
    kinds = [entry["kind"] for entry in entries]
    costs = [entry["cost"] for entry in entries if entry["kind"] in {"evaluation", "confirmation"}]
    judge_s = tuple(cost["build_s"] + cost["judge_s"] for cost in costs if cost is not None)
    return _Entered(kinds.count("evaluation"), kinds.count("confirmation"), judge_s)


def _ready_judges(workspace: Workspace) -> tuple[str, ...] | None:
    """Return the names of the judges once none is starting."""
    status = read_status(workspace, DaemonStatus)
    if status is None or not status.judges or any(judge.state != "idle" for judge in status.judges):
        return None
    return tuple(judge.device for judge in status.judges)


def _wait_until_idle(workspace: Workspace, evaluations: int) -> None:
    def idle() -> bool | None:
        status = read_status(workspace, DaemonStatus)
        busy = status is None or status.queued or status.current or status.evaluations_done < evaluations
        return None if busy else True

    wait_until(idle, deadline_s=_DEADLINE_S, event="an idle daemon")


def _rows(part: str, result: Throughput) -> list[tuple[str, str]]:
    requests = result.evaluations + result.confirmations
    return [
        (f"{part}: judges, evaluations, confirmations, verdicts",
         f"{result.judges}, {result.evaluations}, {result.confirmations}, {result.verdicts}"),
        (f"{part}: seconds for each evaluation, with confirmations", f"{result.seconds / result.evaluations:.2f}"),
        (f"{part}: seconds for each evaluation or confirmation", f"{result.seconds / requests:.2f}"),
        (f"{part}: median seconds in the judge", f"{result.median_judge_s:.2f}"),
        (f"{part}: share of the time that a judge worked", f"{result.judge_s / result.judges / result.seconds:.0%}"),
        (f"{part}: evaluations and confirmations per minute", f"{60 * requests / result.seconds:.1f}"),
    ]  # fmt: skip


def _latency_rows(part: str, seconds: list[float]) -> list[tuple[str, str]]:
    if not seconds:
        return [(f"{part}: candidates", "0")]
    return [
        (f"{part}: candidates, one after the other", str(len(seconds))),
        (f"{part}: seconds from a commit to its entry: median; longest",
         f"{statistics.median(seconds):.2f}; {max(seconds):.2f}"),
        (f"{part}: seconds of each, in order", ", ".join(f"{taken_s:.2f}" for taken_s in seconds)),
    ]  # fmt: skip


def main() -> None:
    """Measure the parts one after the other with one daemon, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=lambda text: text.split(","))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cluster")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--one-by-one", action="store_true", help="submit each when the daemon is idle, and time it")
    options = parser.parse_args()
    unknown_parts = set(options.parts) - set(_PARTS)
    if unknown_parts:
        parser.error(f"no such part: {', '.join(sorted(unknown_parts))}. Parts: {', '.join(_PARTS)}")
    judges = ("--cluster", options.cluster) if options.cluster else ("--device", options.device)
    target = "cpu" if options.parts == ["cpu"] else gpu_target() or "cuda"
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as directory:
        root = Path(directory)
        workspace = create_workspace(root / "queue", suites=()).workspace
        with Repo(workspace) as repo:
            files = {
                f"problems/bench/{file.parent.name}/{file.name}": file.read_bytes()
                for part in options.parts
                for file in problem(root, _PARTS[part]).iterdir()
            }
            repo.commit_files("main", files, "Add problems")
            with running(workspace, "daemon", *judges):
                for part in options.parts:
                    candidates = Candidates(repo, part, target, root)
                    if options.one_by_one:
                        rows = _latency_rows(part, commit_one_by_one(workspace, candidates, options.count))
                    else:
                        rows = _rows(part, measure(workspace, candidates, options.count))
                    sys.stdout.write(tabulate(rows) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
