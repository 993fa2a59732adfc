"""Measure the seconds of a check while an evaluation is timed, and whether that evaluation is still unbiased.

    python -m benchmarks.check_latency [--device cpu] [--evaluations 4] [--pause 3]

Every second evaluation of a solution against itself runs with checks, and the others without. An agent that reads each
answer before its next check is simulated by a pause. On a GPU the checked solutions are sealed CUDA and Triton with a
warm cache; on the CPU C++.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks.gpu import SOURCE, TRITON, problem, solution
from benchmarks.requests import evaluation_request
from harness.formats.problems import load_problem
from harness.model.judging import CheckAnswer, CheckRequest, JudgeAnswer, JudgeProgress
from harness.workspace.blocking_judge import JudgeProcess, judge_process

ROWS = {"cpu": (64, 128), "cuda": (8_192, 16_384)}


@dataclass(frozen=True)
class Setup:
    """The problem with the evaluated solution as its baseline, and the checked solutions."""

    problem: Path
    evaluated: Path
    checked: Mapping[str, Path]


def prepare(root: Path, device: str) -> Setup:
    """Write problem and solutions.

    Args:
        root: directory of the run.
        device: `cpu`, or a GPU.
    """
    kind = "cpu" if device == "cpu" else "cuda"
    directory = problem(root, ROWS[kind])
    evaluated = root / "evaluated"
    shutil.copytree(SOURCE / "solutions" / ("cpu" if kind == "cpu" else "h200"), evaluated)
    shutil.copytree(evaluated, directory / "baseline")
    if kind == "cpu":
        return Setup(directory, evaluated, {"C++": evaluated})
    triton = solution(root, "triton", "triton", TRITON)
    return Setup(directory, evaluated, {"sealed CUDA": evaluated, "Triton": triton})


class Checks:
    """Sends one check after the other during an evaluation, and records the seconds of each.

    Args:
        judge: a running judge.
        setup: problem and solutions.
        pause_s: seconds between an answer and the next check.
    """

    def __init__(self, judge: JudgeProcess, setup: Setup, pause_s: float) -> None:
        self._judge, self._setup, self._pause_s = judge, setup, pause_s
        self._sent = 0
        self._kind, self._sent_at = "", 0.0
        self._active = self._pending = False
        self._next = threading.Timer(0.0, self._send)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.verdicts: set[str] = set()

    def start(self, progress: JudgeProgress) -> None:
        """Send the first check when timing begins."""
        if progress.stage == "workload" and not self._active:
            self._active = True
            self._send()

    def record(self, answer: CheckAnswer) -> None:
        """Record an answer, and send the next check after the pause."""
        self._pending = False
        self.seconds[self._kind].append(time.perf_counter() - self._sent_at)
        self.verdicts.add(str(answer.verdict))
        self._next = threading.Timer(self._pause_s, self._send)
        self._next.start()

    def finish(self) -> None:
        """Send no further check, and wait for the last answer, which is not counted: the judge is idle."""
        self._active = False
        self._next.cancel()
        if self._next.ident is not None:
            self._next.join()
        if self._pending:
            self._judge.next_checked()
            self._pending = False

    def _send(self) -> None:
        kinds = list(self._setup.checked)
        self._kind = kinds[self._sent % len(kinds)]
        self._sent += 1
        loaded = load_problem(self._setup.problem, key=f"bench/{self._setup.problem.name}")
        request = CheckRequest(
            id=str(self._sent),
            problem=loaded.key,
            problem_dir=str(self._setup.problem),
            problem_digest=loaded.digest,
            solution_dir=str(self._setup.checked[self._kind]),
        )
        self._sent_at, self._pending = time.perf_counter(), True
        self._judge.send_check(request)


def evaluate(judge: JudgeProcess, setup: Setup, checks: Checks | None) -> JudgeAnswer:
    """Return the answer to one evaluation of the solution against itself.

    Args:
        judge: a running judge.
        setup: problem and solutions.
        checks: sends checks meanwhile; None for no checks.
    """
    request = evaluation_request(setup.problem, setup.evaluated, "baseline", half_width=0.001, max_judge_s=100.0)
    if checks is None:
        return judge.ask(request, lambda _: None)
    answer = judge.ask(request, checks.start, checks.record)
    checks.finish()
    return answer


def main() -> None:
    """Run the evaluations, and print the seconds of checks and the intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between an answer and the next check")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as directory:
        root = Path(directory)
        os.environ.setdefault("HARNESS_LOCK_DIR", str(root / "locks"))
        setup = prepare(root, options.device)
        with judge_process(options.device, root / "cache", "bubblewrap") as judge:
            checks = Checks(judge, setup, options.pause)
            for number in range(options.evaluations):
                with_checks = number % 2 == 1  # the first evaluation also fills the caches
                answer = evaluate(judge, setup, checks if with_checks else None)
                text = f"{answer.verdict} {answer.summary.speedup} {answer.summary.speedup_ci95} {answer.reason or ''}"
                sys.stdout.write(f"{'with' if with_checks else 'without'} checks: {text}\n")
    rows = [
        (kind, len(seconds), f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s")
        for kind, seconds in checks.seconds.items()
    ]
    sys.stdout.write(f"verdicts of checks: {', '.join(sorted(checks.verdicts))}\n")
    sys.stdout.write(tabulate(rows, headers=("checked", "checks", "median", "longest")) + "\n")


if __name__ == "__main__":
    main()
