"""Measure if the CPU judge's intervals hold, and if it accuses honest solutions.

    python -m benchmarks.cpu_intervals PART [--count N] [--busy N] [--json FILE]

| part | measures |
| --- | --- |
| against-itself | solutions of three starter problems against themselves: how many intervals contain 1 |
| honest | the starter solutions against the reference, in turn: how many are PASSED |
| repeated | one solution in one judge and in fresh judges: how many pairs of intervals do not overlap |

`--busy N` runs N processes that use a core each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle, islice
from pathlib import Path

from tabulate import tabulate

from harness.formats.problems import load_problem
from harness.model.judging import JudgeAnswer, JudgeRequest
from harness.workspace.blocking_judge import JudgeProcess, judge_process

STARTER = Path(__file__).parents[1] / "problems" / "starter"
AGAINST_ITSELF = ("rmsnorm_h4096", "rope_gqa", "swiglu_h14336")
WORKLOADS = 2
"""Of a problem: the smallest and the largest."""
Row = tuple[str, str]


@dataclass(frozen=True)
class Interval:
    """A speed-up and its 95 % interval."""

    speedup: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """As a share of the speed-up."""
        return (self.high - self.low) / 2 / self.speedup


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run so many endless loops."""
    loops = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def copied(root: Path, name: str, *, baseline: bool) -> Path:
    """A starter problem with two workloads; its own solution as its baseline where asked for."""
    problem = root / "starter" / name
    shutil.copytree(STARTER / name, problem)
    lines = (problem / "workload.jsonl").read_text().splitlines(keepends=True)
    (problem / "workload.jsonl").write_text(lines[0] + lines[-1])
    if baseline:
        shutil.copytree(problem / "solutions" / "cpu", problem / "baseline")
    return problem


def ask(judge: JudgeProcess, directory: Path, variant: str) -> JudgeAnswer:
    """One evaluation of the problem's CPU solution."""
    problem = load_problem(directory, key=f"starter/{directory.name}")
    return judge.ask(
        JudgeRequest.model_validate(
            {
                "id": "1", "kind": "evaluation", "problem": problem.key, "problem_dir": str(directory),
                "problem_digest": problem.digest, "solution_dir": str(directory / "solutions" / "cpu"),
                "half_width": 0.02, "max_judge_s": 60.0,
                "baseline": {workload.uuid: variant for workload in problem.workloads},
            }
        ),
        lambda _: None,
    )  # fmt: skip


def interval(answer: JudgeAnswer) -> Interval | None:
    """Of the whole answer; None unless it passed."""
    summary = answer.summary
    if summary.speedup is None or summary.speedup_ci95 is None:
        return None
    return Interval(summary.speedup, *summary.speedup_ci95)


def against_itself(root: Path, count: int) -> Iterator[Row]:
    """Each problem `count` times."""
    with judge_process("cpu", root / "cache", "bubblewrap") as judge:
        for name in AGAINST_ITSELF:
            problem = copied(root, name, baseline=True)
            answers = [ask(judge, problem, "baseline") for _ in range(count)]
            intervals = [one for one in map(interval, answers) if one is not None]
            contain = sum(one.low <= 1 <= one.high for one in intervals)
            half = statistics.median(one.half_width for one in intervals)
            logs = [math.log(one.speedup) for one in intervals]
            seen = [
                f"{contain} of {len(answers)} contain 1",
                f"half-width {half:.2%}",
                f"mean {statistics.fmean(logs):+.2%}, sd {statistics.stdev(logs):.2%}",
                *(f"{answer.verdict}: {answer.reason}" for answer in answers if answer.summary.speedup is None),
            ]
            yield (f"{name} against itself", "; ".join(seen))


def honest(root: Path, count: int) -> Iterator[Row]:
    """All starter problems in turn, `count` evaluations together."""
    problems = [copied(root, path.name, baseline=False) for path in sorted(STARTER.iterdir()) if path.is_dir()]
    with judge_process("cpu", root / "cache", "bubblewrap") as judge:
        answers = [ask(judge, problem, "eager") for problem in islice(cycle(problems), count)]
    verdicts: dict[str, int] = {}
    for answer in answers:
        verdicts[answer.verdict] = verdicts.get(answer.verdict, 0) + 1
    reasons = {answer.reason for answer in answers if answer.reason}
    yield (f"{count} honest evaluations", ", ".join(f"{number} {name}" for name, number in verdicts.items()))
    yield from (("reason", str(reason)) for reason in sorted(map(str, reasons)))


def repeated(root: Path, count: int) -> Iterator[Row]:
    """`count` evaluations in one judge, and as many in fresh ones."""
    problem = copied(root, AGAINST_ITSELF[0], baseline=False)
    with judge_process("cpu", root / "cache", "bubblewrap") as judge:
        one_judge = [interval(ask(judge, problem, "eager")) for _ in range(count)]
    fresh = []
    for _ in range(count):
        with judge_process("cpu", root / "cache", "bubblewrap") as judge:
            fresh.append(interval(ask(judge, problem, "eager")))
    for name, intervals in (("one judge", one_judge), ("fresh judges", fresh), ("both", [*one_judge, *fresh])):
        yield (f"{count} evaluations, {name}", apart([one for one in intervals if one is not None]))


def apart(intervals: Sequence[Interval]) -> str:
    """Number of pairs of intervals that do not overlap, and the spread of the speed-ups."""
    pairs = list(combinations(intervals, 2))
    missed = sum(one.high < other.low or other.high < one.low for one, other in pairs)
    logs = [math.log(one.speedup) for one in intervals]
    half = statistics.median(one.half_width for one in intervals)
    return (
        f"{missed} of {len(pairs)} pairs do not overlap ({missed / len(pairs):.1%}); speed-ups "
        f"{min(one.speedup for one in intervals):.3f} to {max(one.speedup for one in intervals):.3f}, "
        f"sd {statistics.stdev(logs):.2%}, half-width {half:.2%}"
    )


PARTS = {"against-itself": (against_itself, 20), "honest": (honest, 200), "repeated": (repeated, 10)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    measure, usual = PARTS[options.part]
    with tempfile.TemporaryDirectory() as root, busy(options.busy):
        rows = list(measure(Path(root), options.count or usual))
    sys.stdout.write(tabulate(rows) + "\n")
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
