"""Measure the coverage of the CPU judge's intervals, its refusals of honest solutions, and the time to an entry.

    python -m benchmarks.cpu_intervals PART [--count N] [--busy N] [--workloads N] [--file FILE]

| part | measures | count |
| --- | --- | --- |
| against-itself | solutions of three starter problems against themselves: how many intervals contain 1 | 20 of each |
| honest | the starter solutions against the reference, in turn: how many are PASSED | 200 |
| repeated | one solution in one judge and in fresh judges: how many pairs of intervals do not overlap | 10 each |
| commit-to-entry | candidates one after the other through a daemon: seconds from commit to entry | 10 |

`--busy N` runs N processes that use a core each. Each evaluation is appended to FILE (JSON lines). Evaluations in FILE
by this version of the judge are not repeated, so that an interrupted run can be resumed. `--count 0` only prints.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tabulate import tabulate

from benchmarks.commit_to_entry import commit_candidates
from benchmarks.measured_rows import MeasuredRow, append_row, read_rows
from benchmarks.requests import evaluation_request
from harness.judge.version import judge_version
from harness.model.judging import JudgeAnswer
from harness.workspace.blocking_judge import JudgeProcess, judge_process

STARTER = Path(__file__).parents[1] / "problems" / "starter"
AGAINST_ITSELF = ("rmsnorm_h4096", "rope_gqa", "swiglu_h14336")
ONE_JUDGE, FRESH_JUDGES = "one judge", "fresh judges"
SummaryLine = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """One run: the measurement, its directory and the file of results."""

    like: MeasuredRow
    """Part, judge version, load and workloads of every row of this run."""
    count: int
    root: Path
    file: Path

    def rows(self, case: str | None = None) -> list[MeasuredRow]:
        """Return the rows in the file, of one case or of all."""
        return [row for row in read_rows(self.file, self.like) if case in (None, row.case)]

    def keep(self, case: str, answer: JudgeAnswer, session: str = "") -> None:
        """Append one answer of a judge to the file.

        Args:
            case: name of the case.
            answer: the judge's answer.
            session: identifier of the judge process, if several evaluations share one.
        """
        summary = answer.summary
        ci95_low, ci95_high = summary.speedup_ci95 or (None, None)
        values = {
            "case": case, "session": session, "verdict": str(answer.verdict), "reason": answer.reason,
            "speedup": summary.speedup, "ci95_low": ci95_low, "ci95_high": ci95_high,
            "block_error": block_error(answer),
            "discarded": sum(workload.discarded for workload in answer.workloads), "judge_s": answer.cost.judge_s,
            "handshake_us": (answer.device.model_extra or {}).get("handshake_us"),
        }  # fmt: skip
        append_row(self.file, self.like.model_copy(update=values))

    def problem(self, name: str, *, baseline: bool = False) -> Path:
        """Return a copy of a starter problem with the run's number of workloads.

        Args:
            name: the problem's name.
            baseline: use the CPU solution as the problem's baseline too.
        """
        problem = self.root / "starter" / name
        if not problem.exists():
            shutil.copytree(STARTER / name, problem)
            lines = (problem / "workload.jsonl").read_text().splitlines(keepends=True)
            (problem / "workload.jsonl").write_text("".join(evenly(lines, self.like.workloads)))
            if baseline:
                shutil.copytree(problem / "solutions" / "cpu", problem / "baseline")
        return problem


def evenly(lines: Sequence[str], count: int) -> list[str]:
    """Return lines at equal distances, which include the first and the last.

    Args:
        lines: all lines.
        count: maximum number of lines to return.
    """
    if count >= len(lines):
        return list(lines)
    return [lines[round(number * (len(lines) - 1) / max(1, count - 1))] for number in range(count)]


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes with endless loops."""
    loops = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def evaluate(judge: JudgeProcess, directory: Path, variant: str) -> JudgeAnswer:
    """Return the judge's answer for one evaluation of a problem's CPU solution.

    Args:
        judge: a running judge.
        directory: the problem's directory.
        variant: baseline of every workload.
    """
    solution = directory / "solutions" / "cpu"
    request = evaluation_request(directory, solution, variant, suite="starter", half_width=0.02)
    return judge.ask(request, lambda _: None)


def block_error(answer: JudgeAnswer) -> float | None:
    """Return the standard error of the mean log ratio over all workloads; None unless each has two blocks."""
    ratios = [workload.log_ratios for workload in answer.workloads]
    if not ratios or min(map(len, ratios)) < 2:
        return None
    return math.sqrt(sum(statistics.variance(log_ratios) / len(log_ratios) for log_ratios in ratios)) / len(ratios)


def against_itself(plan: Plan) -> Iterator[SummaryLine]:
    """Judge the solution of each problem against itself, `count` times."""
    missing = {name: plan.count - len(plan.rows(name)) for name in AGAINST_ITSELF}
    if any(number > 0 for number in missing.values()):
        with judge_process("cpu", plan.root / "cache", "bubblewrap") as judge:
            for name, number in missing.items():
                for _ in range(number):
                    plan.keep(name, evaluate(judge, plan.problem(name, baseline=True), "baseline"))
    for name in AGAINST_ITSELF:
        yield f"{name} against itself", _containing_one(plan.rows(name))


def _containing_one(rows: Sequence[MeasuredRow]) -> str:
    timed = [(row.speedup, row.ci95_low, row.ci95_high) for row in rows]
    passed = [(ci95_low, ci95_high) for speedup, ci95_low, ci95_high in timed if speedup and ci95_low and ci95_high]
    contain = sum(ci95_low <= 1 <= ci95_high for ci95_low, ci95_high in passed)
    texts = [f"{contain} of {len(rows)} contain 1", *_spread(rows)]
    texts += [f"{row.verdict}: {row.reason}" for row in rows if row.speedup is None]
    return "; ".join(texts)


def _spread(rows: Sequence[MeasuredRow]) -> list[str]:
    """Return texts on the half-width, mean and standard deviation of the speed-ups."""
    passed = [row for row in rows if row.speedup is not None]
    logs = [math.log(row.speedup) for row in passed if row.speedup]
    if len(logs) < 2:
        return []
    half = statistics.median(
        (row.ci95_high - row.ci95_low) / 2 / row.speedup
        for row in passed
        if row.speedup and row.ci95_low and row.ci95_high
    )
    errors = [row.block_error for row in passed if row.block_error is not None]
    beyond = statistics.variance(logs) - statistics.fmean(error**2 for error in errors) if errors else 0.0
    return [
        f"median half-width {half:.2%}",
        f"process error of a side {math.sqrt(max(0.0, beyond) / 2):.2%}",
        f"mean {math.exp(statistics.fmean(logs)):.4g}x, sd {statistics.stdev(logs):.2%}",
        f"{sum(row.discarded for row in rows)} blocks discarded",
        f"median {statistics.median(row.judge_s for row in rows):.1f} s",
    ]


def honest(plan: Plan) -> Iterator[SummaryLine]:
    """Judge the solutions of all starter problems in turn, `count` evaluations in total."""
    names = sorted(path.name for path in STARTER.iterdir() if path.is_dir())
    done = len(plan.rows())
    if done < plan.count:
        with judge_process("cpu", plan.root / "cache", "bubblewrap") as judge:
            for number in range(done, plan.count):
                name = names[number % len(names)]
                plan.keep(name, evaluate(judge, plan.problem(name), "eager"))
    rows = plan.rows()
    verdicts = Counter(row.verdict for row in rows)
    yield f"{len(rows)} honest evaluations", ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    yield from (("reason", reason) for reason in sorted({f"{row.case}: {row.reason}" for row in rows if row.reason}))
    for name in names:
        spread = _spread(plan.rows(name))
        if spread:
            yield name, "; ".join(spread)


def repeated(plan: Plan) -> Iterator[SummaryLine]:
    """Judge one solution `count` times in one judge, and `count` times in new judges."""
    name = AGAINST_ITSELF[0]

    def measure(case: str, number: int) -> None:
        with judge_process("cpu", plan.root / "cache", "bubblewrap") as judge:
            session = secrets.token_hex(4)
            for _ in range(number):
                plan.keep(case, evaluate(judge, plan.problem(name), "eager"), session)

    if len(_of_one_judge(plan)) < plan.count:
        measure(ONE_JUDGE, plan.count)  # an interrupted series cannot be continued in another judge
    for _ in range(plan.count - len(plan.rows(FRESH_JUDGES))):
        measure(FRESH_JUDGES, 1)
    one_judge, fresh = _of_one_judge(plan), plan.rows(FRESH_JUDGES)
    for case, rows in ((ONE_JUDGE, one_judge), (FRESH_JUDGES, fresh), ("both", [*one_judge, *fresh])):
        yield f"{len(rows)} evaluations, {case}", _apart(rows)


def _of_one_judge(plan: Plan) -> list[MeasuredRow]:
    """Return the longest series that one judge measured."""
    series: dict[str, list[MeasuredRow]] = {}
    for row in plan.rows(ONE_JUDGE):
        series.setdefault(row.session, []).append(row)
    return max(series.values(), key=len, default=[])


def _apart(rows: Sequence[MeasuredRow]) -> str:
    """Return the number of pairs of intervals that do not overlap, and the spread of the speed-ups."""
    intervals = [(row.ci95_low, row.ci95_high) for row in rows]
    passed = [(ci95_low, ci95_high) for ci95_low, ci95_high in intervals if ci95_low and ci95_high]
    pairs = list(combinations(passed, 2))
    missed = sum(first[1] < second[0] or second[1] < first[0] for first, second in pairs)
    share = f" ({missed / len(pairs):.1%})" if pairs else ""
    not_passed = [f"{len(rows) - len(passed)} not PASSED"] if len(passed) < len(rows) else []
    return "; ".join([f"{missed} of {len(pairs)} pairs do not overlap{share}", *_spread(rows), *not_passed])


def commit_to_entry(plan: Plan) -> Iterator[SummaryLine]:
    """Commit `count` candidates of a starter problem, each to an idle daemon."""
    name = AGAINST_ITSELF[0]
    for values in commit_candidates(plan.root, f"starter/{name}", plan.count - len(plan.rows(name))):
        append_row(plan.file, plan.like.model_copy(update={"case": name, **values}))
    rows = plan.rows(name)
    columns: dict[str, list[float | None]] = {
        "commit to the evaluation's entry": [row.to_entry_s for row in rows],
        "commit to the confirmation's entry": [row.to_confirmation_s for row in rows],
        "the evaluation in the judge": [row.judge_s for row in rows],
    }
    for title, times in columns.items():
        recorded = [seconds for seconds in times if seconds is not None]
        if recorded:
            yield title, f"median {statistics.median(recorded):.1f} s, worst {max(recorded):.1f} s, of {len(recorded)}"
    verdicts = Counter(row.verdict for row in rows)
    entries = len(rows) + sum(row.to_confirmation_s is not None for row in rows)
    total = sum(row.to_confirmation_s or row.to_entry_s or 0.0 for row in rows)
    if entries:
        yield "seconds for each entry, confirmations counted", f"{total / entries:.1f} s ({entries} entries)"
    yield "verdicts", ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())


PARTS: dict[str, tuple[Callable[[Plan], Iterator[SummaryLine]], int]] = {
    "against-itself": (against_itself, 20),
    "honest": (honest, 200),
    "repeated": (repeated, 10),
    "commit-to-entry": (commit_to_entry, 10),
}


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--workloads", type=int, default=6, help="most workloads of a problem (default: all six)")
    parser.add_argument("--file", type=Path, help="file of evaluations (default: a temporary one)")
    options = parser.parse_args()
    measure, usual = PARTS[options.part]
    like = MeasuredRow(
        part=options.part, case="", judge_version=judge_version(), busy=options.busy, workloads=options.workloads,
        verdict="", judge_s=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as root, busy(options.busy):
        count = usual if options.count is None else options.count
        file = options.file or Path(root) / "rows.jsonl"
        lines = list(measure(Plan(like, count, Path(root), file)))
    sys.stdout.write(tabulate(lines) + "\n")


if __name__ == "__main__":
    main()
