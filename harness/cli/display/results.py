"""An evaluation as text for people: a line per workload and the result for the problem."""

from __future__ import annotations

from collections.abc import Sequence

from harness.cli.display.output import echo, echo_lines
from harness.cli.display.tables import Column, screen_width, table_lines
from harness.model.counters import resource_lines
from harness.model.entry import Entry
from harness.model.judging import JudgeAnswer, WorkloadResult
from harness.model.printable import interval_of
from harness.model.weaknesses import Weakness, weakness_lines, weakness_mark


def print_judgement(judged: JudgeAnswer | Entry, weak: Sequence[Weakness]) -> None:
    """Print the table of workloads, the reasons and notes of workloads, the resources, and the overall speed-up.

    Args:
        judged: the evaluation.
        weak: its weaknesses, which mark the speed-up with a symbol.
    """
    _table(judged.workloads)
    reasons = [f"{workload.uuid[:8]}: {workload.reason}" for workload in judged.workloads if workload.reason]
    reasons += [f"note: {note}" for note in dict.fromkeys(workload.note for workload in judged.workloads) if note]
    if any(workload.bound_rates == "measured" for workload in judged.workloads):
        reasons.append("bounds: from rates measured on the judge's host")
    if reasons:
        echo("\n" + "\n".join(reasons))
    if kernels := resource_lines(judged.resources):
        echo("\n" + "\n".join(kernels))
    summary, cost = judged.summary, judged.cost
    if summary is None or cost is None or summary.speedup is None or summary.speedup_ci95 is None:
        echo(f"\n{judged.verdict}: {judged.reason}")
        return
    score = f", score {summary.score:.3f}" if summary.score is not None else ""
    echo(
        f"\n{judged.verdict}: {summary.speedup:.3f}x{weakness_mark(weak)} "
        f"({interval_of(summary.speedup_ci95)}){score}, "
        f"{judged.trust}; built in {cost.build_s:.1f} s, judged in {cost.judge_s:.1f} s"
    )


def print_with_weaknesses(judged: JudgeAnswer | Entry, weak: Sequence[Weakness]) -> None:
    """Print an evaluation, and below it a sentence for each weakness of its numbers.

    Args:
        judged: the evaluation.
    """
    print_judgement(judged, weak)
    echo_lines(weakness_lines(weak))


def _table(workloads: Sequence[WorkloadResult]) -> None:
    if not workloads:
        echo("no workload was judged")
        return
    columns: tuple[Column[WorkloadResult], ...] = (
        Column("workload", lambda work: work.uuid[:8]),
        Column("verdict", lambda work: str(work.verdict), min_width=8),
        Column("latency us", lambda work: _number(work.latency_us, ".2f")),
        Column("baseline us", lambda work: _number(work.baseline_us, ".2f")),
        Column("by", lambda work: work.variant or "-", ((2, None),)),
        Column("speed-up", lambda work: _number(work.speedup, ".3f")),
        Column("95 %", lambda work: interval_of(work.speedup_ci95), min_width=14),
        Column("bound us", lambda work: _number(work.sol_us, ".2f"), ((4, None),)),
        Column("score", lambda work: _number(work.score, ".3f"), ((3, None),)),
        Column("max error", lambda work: _number(work.max_abs_error, ".2g"), ((5, None),)),
        Column("blocks", _blocks, ((6, None),)),
    )
    echo_lines(table_lines(workloads, columns, screen_width()))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _blocks(work: WorkloadResult) -> str:
    return f"{work.blocks}" + (f" (-{work.discarded})" if work.discarded else "")
