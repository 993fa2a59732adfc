"""Measure a large ledger: append, flush, status and index with 100,000 entries.

    python -m benchmarks.ledger [--entries 100000] [--problems 235] [--keep DIR]

It creates a workspace in a temporary directory and removes it (about 3 GB during the run).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from tabulate import tabulate

from harness.formats.ledger_documents import HEADER, hash_of, render_entry
from harness.formats.ledger_heads import Head, render_heads
from harness.git.environment import Git
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.ledger.standings import standings
from harness.model.entry import Candidate, Entry, EntryDraft, stamp
from harness.model.interval import summarise, workload_interval
from harness.model.judging import JUDGE_PROTOCOL, Cost, DeviceRecord, EnvironmentRecord, WorkloadResult
from harness.model.paths import HEADS, ledger_file
from harness.model.verdict import EntryKind, Trust, Verdict
from harness.workspace.directories import Workspace

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
_WORKLOADS = 6
_BLOCKS = 16


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    title: str
    limit: str
    measured: str


def measure(entries: int, problems: int, root: Path) -> list[Figure]:
    """Create a ledger and return its figures.

    Args:
        entries: number of entries.
        problems: number of problems.
        root: the workspace.
    """
    workspace, size_mb = make(entries, problems, root)
    figures = [Figure(f"ledger of {entries} entries, {problems} problems", "", f"{size_mb:.0f} MB")]
    with Repo(workspace) as repo:
        with Index(workspace, branch="main") as index:
            took, _ = timed(lambda: index.refresh(repo))
        index_mb = workspace.index_file.stat().st_size / 1e6
        figures.append(Figure("index created", "<= 300 s", f"{took:.1f} s ({index_mb:.0f} MB)"))
        figures += appending(workspace, repo, problems)
        with Index(workspace, branch="main") as index:
            took, _ = timed(lambda: index.refresh(repo))
            figures.append(Figure("index brought up to date by 200 appended entries", "", f"{took * 1e3:.0f} ms"))
            names = [problem_name(number) for number in range(problems)]
            took, _ = timed(lambda: standings(index, names, "cpu", "main"))
            figures.append(Figure("standings of all problems", "", f"{took * 1e3:.0f} ms"))
            took, _ = timed(lambda: standings(index, names[:1], "cpu", "main"))
            figures.append(Figure("standing of one problem", "", f"{took * 1e3:.0f} ms"))
            took, _ = timed(lambda: index.find("sha256:b", "0" * 40, "cpu", "sha256:e"))
            figures.append(Figure("is this key known", "", f"{took * 1e3:.2f} ms"))
    command(workspace, "status")
    times = [timed(lambda: command(workspace, "status"))[0] for _ in range(5)]
    figures.append(Figure("harness status, warm, whole command", "<= 1 s", f"{statistics.median(times):.2f} s"))
    times = [timed(lambda: command(workspace, "log", "-n", "20"))[0] for _ in range(5)]
    figures.append(Figure("harness log, warm, whole command", "", f"{statistics.median(times):.2f} s"))
    return figures


def appending(workspace: Workspace, repo: Repo, problems: int) -> list[Figure]:
    """Return the figures of opening, appending and flushing.

    Args:
        workspace: a workspace with a large ledger.
        repo: the workspace's repository.
        problems: number of problems.
    """
    rng = random.Random(7)
    drafts = [draft(rng, problem_name(rng.randrange(problems))) for _ in range(200)]
    files = len({new_entry.problem for new_entry in drafts})
    opening, ledger = timed(lambda: Ledger(workspace, repo, branch="main"))
    try:
        times = sorted(timed(lambda new_entry=new_entry: ledger.append(new_entry))[0] for new_entry in drafts)  # type: ignore[misc]
        flushing, _ = timed(lambda: ledger.flush(force=True))
        for number in range(8):
            ledger.append(draft(rng, problem_name(number % 2)))
        small, _ = timed(lambda: ledger.flush(force=True))
    finally:
        ledger.close()
    middle, slow = times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3
    return [
        Figure("ledger opened", "", f"{opening * 1e3:.0f} ms"),
        Figure("append, synced to disk: median, 99 %", "<= 10 ms", f"{middle:.1f} ms, {slow:.1f} ms"),
        Figure(f"flush of 200 entries over {files} problems: one commit", "", f"{flushing:.2f} s"),
        Figure("flush of 8 entries over 2 problems: one commit", "", f"{small:.2f} s"),
    ]


def make(entries: int, problems: int, root: Path) -> tuple[Workspace, float]:
    """Create a workspace whose coordination branch contains a ledger; return it and the ledger's size in MB.

    Args:
        entries: number of entries.
        problems: number of problems.
        root: the workspace.
    """
    root.mkdir(parents=True)
    git = ["git", "-C", str(root), "-c", "user.name=b", "-c", "user.email=b@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (root / "harness.yaml").write_text("run: main\n")
    (root / ".gitignore").write_text("/.harness/\n")
    rng = random.Random(1)
    heads: dict[str, Head] = {}
    size, at = 0, START
    # The bodies of entries repeat: size and structure matter for the measurements, values do not.
    bodies = [draft(rng, "x/y") for _ in range(400)]
    for number in range(problems):
        name = problem_name(number)
        raws: list[bytes] = []
        for seq in range(1, entries // problems + (number < entries % problems) + 1):
            at += timedelta(seconds=20)
            tree = f"{rng.getrandbits(160):040x}"
            body = bodies[rng.randrange(len(bodies))]
            values = {**dict(body), "problem": name, "candidate": candidate(rng, name, tree)}
            prev = hash_of(raws[-1]) if raws else None
            raws.append(render_entry(Entry.model_construct(**values, seq=seq, prev=prev, at=stamp(at))))
        if not raws:
            continue
        file = ledger_file(name)
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(HEADER + b"".join(raws))
        heads[file] = Head(seq=len(raws), hash=hash_of(raws[-1]), at=stamp(at))
        size += (root / file).stat().st_size
    (root / HEADS).write_bytes(render_heads(heads))
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a large ledger"], check=True)
    workspace = Workspace(root)
    Git(workspace.git_common_dir).run("repack", "-adq")
    return workspace, size / 1e6


def draft(rng: random.Random, problem: str) -> EntryDraft:
    """Return a typical evaluation with six workloads of sixteen blocks.

    Args:
        rng: source of the values.
        problem: the problem's key.
    """
    workloads = []
    for _ in range(_WORKLOADS):
        ratios = tuple(rng.gauss(0.3, 0.02) for _ in range(_BLOCKS))
        speedup, interval = workload_interval(ratios)
        workloads.append(
            WorkloadResult(
                uuid=str(uuid.UUID(int=rng.getrandbits(128))), verdict=Verdict.PASSED, latency_us=12 / speedup,
                baseline_us=12.0, speedup=speedup, speedup_ci95=interval, log_ratios=ratios,
                claimed_us=11.9 / speedup, subtracted_us=0.0123, sol_us=3.0, floor_us=2.5,
                score=1 / (1 + (12 / speedup - 3) / 9), max_abs_error=math.exp(rng.gauss(-9, 1)),
                max_rel_error=math.exp(rng.gauss(-7, 1)), matched=1.0, checked=256, calls=256, blocks=_BLOCKS,
                variant="eager",
            )
        )  # fmt: skip
    return EntryDraft(
        kind=EntryKind.EVALUATION,
        run="main",
        problem=problem,
        problem_digest="sha256:" + "b" * 64,
        target="cpu",
        candidate=candidate(rng, problem, f"{rng.getrandbits(160):040x}"),
        device=DeviceRecord(name="AMD EPYC 7763", id="cpu:3"),
        environment=EnvironmentRecord(
            harness="0.1.0", judge="sha256:" + "e" * 64, python="3.11.7", torch="2.13.0", sandbox="bubblewrap"
        ),
        judge_protocol=JUDGE_PROTOCOL,
        verdict=Verdict.PASSED,
        trust=Trust.BOUNDED,
        workloads=tuple(workloads),
        summary=summarise(workloads),
        cost=Cost(build_s=0.41, judge_s=2.13),
    )


def candidate(rng: random.Random, problem: str, tree: str) -> Candidate:
    """Return a candidate of one of eight workers.

    Args:
        rng: source of the worker and the commit.
        problem: the problem's key.
        tree: git tree id of the solution.
    """
    worker = f"w{rng.randrange(8):02d}"
    commit = f"{rng.getrandbits(160):040x}"
    return Candidate(commit=commit, tree=tree, branch=f"agents/main/{worker}/{problem}", worker=worker, language="cpp")


def problem_name(number: int) -> str:
    """Return the key of the problem with a number."""
    return f"L{number % 4 + 1}/problem_{number:03d}"


def command(workspace: Workspace, *arguments: str) -> None:
    """Run one `harness` command in a process.

    Args:
        workspace: working directory of the command.
        arguments: arguments of the command.
    """
    command_line = [sys.executable, "-m", "harness", *arguments]
    subprocess.run(command_line, cwd=workspace.root, stdout=subprocess.DEVNULL, check=True)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the duration of a call in seconds, and its result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


@contextmanager
def workspace_root(keep: Path | None) -> Iterator[Path]:
    """Yield the path of a benchmark's workspace: `keep`, or a temporary directory that is removed."""
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="kernel-harness-bench-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "workspace"


def print_figures(figures: Sequence[Figure]) -> None:
    """Print the table."""
    rows = [(figure.title, figure.limit, figure.measured) for figure in figures]
    print(tabulate(rows, headers=("figure", "at most", "seen")))


def main() -> None:
    """Measure the ledger and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--problems", type=int, default=235)
    parser.add_argument("--keep", type=Path, help="make the workspace here and leave it")
    options = parser.parse_args()
    with workspace_root(options.keep) as root:
        print_figures(measure(options.entries, options.problems, root))


if __name__ == "__main__":
    main()
