"""Measure the head under load: 64 stub judges, 200 branches, 30 submissions a second, a real daemon and real git.

    python -m benchmarks.head [--minutes 10] [--judges 64] [--workers 200] [--rate 30] [--problems 100] [--keep DIR]
    python -m benchmarks.head start [--entries 100000] [--branches 1000]

The first command starts a daemon and a planner, and moves the workers' branches to prepared commits at the given rate.
The queue wait of a candidate is the time from the move of its branch to the moment at which a judge reads the request.
At the end each candidate must have one evaluation.

The second command makes a large ledger and many branches, starts a daemon without an index, and waits for the first
request of a new candidate.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ledger import Figure, make, print_figures, problem_name, timed, workspace_root
from harness.git.repo import Repo
from harness.git.tree_ids import TreeFile, blob_id, tree_id
from harness.ledger.audit.audit import audit
from harness.ledger.create_workspace import create_workspace
from harness.ledger.index import Index
from harness.model.process_status import DaemonStatus
from harness.model.verdict import EntryKind
from harness.workspace.directories import Workspace
from harness.workspace.status import read_status
from tests.site import KERNEL, SOLUTION, STUB, git, write_problem
from tests.waiting import wait_until

_DRAIN_S = 600.0
_TICK_S = 0.05
"""Interval in seconds at which groups of branches are moved."""
_STATUS_EVERY_S = 15.0


@dataclass(frozen=True)
class Submission:
    """One commit that is not published yet."""

    branch: str
    tree: str
    commit: str


def measure(minutes: float, judges: int, workers: int, rate: float, problems: int, root: Path) -> list[Figure]:
    """Run daemon and planner under load and return the figures.

    Args:
        minutes: duration of the load.
        judges: number of stub judges.
        workers: number of workers, each with one branch.
        rate: submissions per second.
        problems: number of problems.
        root: the workspace.
    """
    names = [f"t/p{number:03d}" for number in range(problems)]
    _workspace_with(root, names)
    per_worker = max(int(rate * minutes * 60 / workers), 1)
    first, *rounds = submissions(root, names, workers, per_worker + 1)
    workspace = Workspace(root)
    requests = root.parent / "requests.jsonl"
    with running(workspace, requests, "daemon", "--device", device_names(judges)) as daemon:
        with running(workspace, requests, "planner", *worker_options(workers)) as planner:
            wait_until(lambda: _ready(workspace) >= judges, deadline_s=300, event="the judges")
            publish_all(root, [first], rate)
            _drained(workspace)  # each problem has its baseline
            statuses = StatusTimes(workspace)
            started_at, used, planned = time.time(), cpu_s(daemon.pid), cpu_s(planner.pid)
            published = publish_all(root, rounds, rate)
            took = time.time() - started_at
            statuses.close()
            drained, _ = timed(lambda: _drained(workspace))
            used, planned = cpu_s(daemon.pid) - used, cpu_s(planner.pid) - planned
            memory = peak_mb(daemon.pid), peak_mb(planner.pid)
            ended, _ = timed(lambda: end(planner))
        stopped, _ = timed(lambda: end(daemon))
    trees = {submission.tree for submissions_of_round in (first, *rounds) for submission in submissions_of_round}
    waits = queue_waits(requests, published)
    return [
        Figure("evaluations a second", f"{rate:g}", f"{len(published) / took:.1f}"),
        Figure("queue wait: median, 99 %, worst", "99 %: 2 s", _quantiles(waits)),
        Figure("daemon, planner: largest resident set", "500 MB", f"{memory[0]:.0f} MB, {memory[1]:.0f} MB"),
        Figure("daemon: processor time for each evaluation", "", f"{used / len(published) * 1e3:.1f} ms"),
        Figure("planner: processor time a second", "", f"{planned / (took + drained) * 1e3:.0f} ms"),
        Figure("`harness status` meanwhile: median, worst", "1 s", statuses.summary()),
        Figure("drained after the last submission", "", f"{drained:.1f} s"),
        Figure("planner, daemon ended within", "", f"{ended:.1f} s, {stopped:.1f} s"),
        *checked(workspace, trees),
    ]


def checked(workspace: Workspace, trees: set[str]) -> list[Figure]:
    """Return figures on lost and repeated candidates, and on the audit.

    Args:
        workspace: the workspace after the run.
        trees: git tree ids of all submissions.
    """
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        index.refresh(repo)
        rows = index.rows(kind=str(EntryKind.EVALUATION))
        evaluated = Counter(row.tree for row in rows)
        lost, twice = len(trees - evaluated.keys()), sum(count > 1 for count in evaluated.values())
        breaks = audit(workspace, repo, branch="main").breaks
        entries = index.count()
    return [
        Figure("candidates lost, entered twice", "0, 0", f"{lost}, {twice}"),
        Figure("audit", "0 breaks", f"{len(breaks)} breaks in {entries} entries"),
    ]


def measure_start(entries: int, branches: int, root: Path) -> list[Figure]:
    """Return the time from the daemon's start to its first request, with and without an index.

    Args:
        entries: entries of the ledger.
        branches: number of branches.
        root: the workspace.
    """
    workspace, size_mb = make(entries, 235, root)
    names = [problem_name(number) for number in range(235)]
    for name in names:
        write_problem(root, name)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "Add problems")
    (old,) = submissions(root, names, branches, 1)
    figures = [Figure(f"ledger of {entries} entries, {branches} branches", "", f"{size_mb:.0f} MB")]
    requests = root.parent / "requests.jsonl"
    publish_all(root, [old], 1e6)
    for case in ("without an index", "with one"):
        requests.unlink(missing_ok=True)
        started_at = time.perf_counter()
        with running(workspace, requests, "daemon", "--device", device_names(4)) as daemon:
            wait_until(requests.exists, deadline_s=600, event="a request")
            took = time.perf_counter() - started_at
            peak, used = peak_mb(daemon.pid), cpu_s(daemon.pid)
            end(daemon)
        measured = f"{took:.1f} s ({used:.1f} s of processor time, {peak:.0f} MB)"
        figures.append(Figure(f"start to first request, {case}", "15 s", measured))
    return figures


# --- submissions ---


def submissions(root: Path, problems: Sequence[str], workers: int, rounds: int) -> list[list[Submission]]:
    """Create all commits without publishing them, and return them by rounds of one commit per worker.

    Args:
        root: the workspace.
        problems: keys of the problems.
        workers: number of workers.
        rounds: number of rounds.
    """
    base = git(root, "rev-parse", "main")
    marks = root.parent / "marks"
    lines: list[bytes] = []
    rounds_of_commits: list[list[tuple[str, str, int]]] = []
    mark = 0
    solution = TreeFile(b"100644", blob_id(SOLUTION.encode()))
    last: dict[str, int] = {}
    for number in range(rounds):
        rounds_of_commits.append([])
        for worker in range(workers):
            problem = problems[worker % len(problems)]
            branch = f"agents/main/w{worker:03d}/{problem}"
            # Speed-ups increase up to a limit, so that some candidates are confirmed, as in a real run.
            text = f"{KERNEL}// w{worker} number {number}\n// stub: speedup={0.9 + min(number, 20) * 0.01:.2f}\n"
            text += "// stub: takes=1.2\n" if number else ""
            mark += 1
            parent = f":{last[branch]}" if branch in last else base
            last[branch] = mark
            place = f"problems/{problem}/solutions/cpu"
            message = f"Try number {number}\n\nRun: main\nWorker: w{worker:03d}\n"
            lines += [
                b"commit refs/bench/prepared\nmark :%d\n" % mark,
                b"committer w <w@localhost> %d +0000\n" % (int(time.time()) + number),
                b"data %d\n%s" % (len(message), message.encode()),
                f"from {parent}\n".encode(),
                _inline(f"{place}/solution.yaml", SOLUTION),
                _inline(f"{place}/kernel.cpp", text),
            ]
            tree = tree_id({"solution.yaml": solution, "kernel.cpp": TreeFile(b"100644", blob_id(text.encode()))})
            rounds_of_commits[-1].append((branch, tree, mark))
    command = ["git", "-C", str(root), "fast-import", "--quiet", "--force", f"--export-marks={marks}"]
    subprocess.run(command, input=b"".join(lines), check=True)
    git(root, "update-ref", "-d", "refs/bench/prepared")
    commits = dict(line.split() for line in marks.read_text().splitlines())
    return [
        [Submission(branch, tree, commits[f":{mark}"]) for branch, tree, mark in commits_of_round]
        for commits_of_round in rounds_of_commits
    ]


def _inline(path: str, text: str) -> bytes:
    return f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n".encode()


def publish_all(root: Path, rounds: list[list[Submission]], rate: float) -> dict[str, float]:
    """Move branches to their commits and return tree -> time of the move (time.time).

    Args:
        root: the workspace.
        rounds: submissions by rounds.
        rate: moves per second.
    """
    waiting = [submission for submissions_of_round in rounds for submission in submissions_of_round]
    published: dict[str, float] = {}
    command = ["git", "-C", str(root), "update-ref", "--stdin"]
    started_at = time.time()
    while len(published) < len(waiting):
        time.sleep(_TICK_S)
        due = waiting[len(published) : int((time.time() - started_at) * rate) + 1]
        if not due:
            continue
        moves = "".join(f"update refs/heads/{submission.branch} {submission.commit}\n" for submission in due)
        subprocess.run(command, input=moves.encode(), check=True)
        moved_at = time.time()
        published |= {submission.tree: moved_at for submission in due}
    return published


def queue_waits(requests: Path, published: dict[str, float]) -> list[float]:
    """Return the sorted seconds from the publication of each candidate to its request.

    Args:
        requests: file in which the stub judges record requests.
        published: tree -> time of publication.
    """
    waits = []
    for line in requests.read_text().splitlines():
        request = json.loads(line)
        if request["kind"] == "evaluation":
            tree = Path(request["solution_dir"]).name
            if tree in published:
                waits.append(request["noted_at"] - published[tree])
    return sorted(waits)


# --- processes ---


@contextmanager
def running(workspace: Workspace, requests: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a harness process with stub judges; it is killed afterwards if it still runs.

    Args:
        workspace: working directory of the process.
        requests: file in which the stub judges record requests.
        arguments: arguments of the command `harness`.
    """
    environment = {
        **os.environ,
        "HARNESS_JUDGE_COMMAND": shlex.join([sys.executable, str(STUB)]),
        "STUB_JUDGE_REQUESTS": str(requests),
    }
    command = [sys.executable, "-m", "harness", *arguments]
    process = subprocess.Popen(command, cwd=workspace.root, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a harness process with SIGTERM and check its exit status."""
    process.send_signal(signal.SIGTERM)
    if process.wait(timeout=300) != 0:
        raise SystemExit(f"{process.args!r} ended with {process.returncode}")


class StatusTimes:
    """Periodic measurements of the duration of `harness status`."""

    def __init__(self, workspace: Workspace) -> None:
        self._root, self._stop = workspace.root, threading.Event()
        self._times: list[float] = []
        self._thread = threading.Thread(target=self._watch, name="status-times")
        self._thread.start()

    def _watch(self) -> None:
        command = [sys.executable, "-m", "harness", "status"]
        while not self._stop.wait(_STATUS_EVERY_S):
            took, _ = timed(lambda: subprocess.run(command, cwd=self._root, check=True, stdout=subprocess.DEVNULL))
            self._times.append(took)

    def close(self) -> None:
        """Stop the measurements."""
        self._stop.set()
        self._thread.join()

    def summary(self) -> str:
        """Return the median and the longest duration."""
        return f"{statistics.median(self._times):.2f} s, {max(self._times):.2f} s" if self._times else "-"


def peak_mb(pid: int) -> float:
    """Return the peak resident set of a process in MB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1e3 * 1.024


def cpu_s(pid: int) -> float:
    """Return the processor time in seconds of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def device_names(count: int) -> str:
    """Return `cpu:0,1,2 ...` with `count` numbers; stub judges accept any number."""
    return f"cpu:{','.join(map(str, range(count)))}"


def worker_options(workers: int) -> list[str]:
    """Return the planner's options for `workers` workers."""
    return [part for worker in range(workers) for part in ("--worker", f"w{worker:03d}")]


def _workspace_with(root: Path, names: Sequence[str]) -> None:
    root.mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    create_workspace(root, suites=())
    for name in names:
        write_problem(root, name, workloads=6)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "Add problems")


def _ready(workspace: Workspace) -> int:
    status = read_status(workspace, DaemonStatus)
    return sum(judge.state == "idle" for judge in status.judges) if status else 0


def _drained(workspace: Workspace) -> None:
    """Wait until the daemon is idle at three times in a row."""

    def idle() -> bool:
        status = read_status(workspace, DaemonStatus)
        return status is not None and not status.queued and all(judge.state == "idle" for judge in status.judges)

    for _ in range(3):
        wait_until(idle, deadline_s=_DRAIN_S, poll_s=0.2, event="an idle daemon")
        time.sleep(1.0)


def _quantiles(waits: list[float]) -> str:
    if not waits:
        return "-"
    return f"{waits[len(waits) // 2]:.2f} s, {waits[int(len(waits) * 0.99)]:.2f} s, {waits[-1]:.2f} s"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["load", "start"], default="load")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--judges", type=int, default=64)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--rate", type=float, default=30, help="submissions a second")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--branches", type=int, default=1_000)
    parser.add_argument("--keep", type=Path, help="make the workspace here and leave it")
    options = parser.parse_args()
    with workspace_root(options.keep) as root:
        if options.what == "start":
            figures = measure_start(options.entries, options.branches, root)
        else:
            figures = measure(options.minutes, options.judges, options.workers, options.rate, options.problems, root)
    print_figures(figures)


if __name__ == "__main__":
    main()
