"""One judgement as people read it: a line per workload, and what they make together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.cli.output import echo, emit

if TYPE_CHECKING:
    from harness.model.entry import Entry
    from harness.model.judging import JudgeAnswer, WorkloadResult


def print_judgement(judged: JudgeAnswer | Entry) -> None:
    """The workloads' table; below it the reasons of workloads that have one, and the whole's speed-up."""
    _table(judged.workloads)
    reasons = [f"{workload.uuid[:8]}: {workload.reason}" for workload in judged.workloads if workload.reason]
    if reasons:
        echo("\n" + "\n".join(reasons))
    summary, cost = judged.summary, judged.cost
    if summary is None or cost is None or summary.speedup is None or summary.speedup_ci95 is None:
        echo(f"\n{judged.verdict}: {judged.reason}")
        return
    low, high = summary.speedup_ci95
    score = f", score {summary.score:.3f}" if summary.score is not None else ""
    echo(
        f"\n{judged.verdict}: {summary.speedup:.3f}x ({low:.3f} to {high:.3f}){score}, {judged.trust}; "
        f"built in {cost.build_s:.1f} s, judged in {cost.judge_s:.1f} s"
    )


def _table(workloads: Sequence[WorkloadResult]) -> None:
    def number(name: str, form: str) -> Any:  # noqa: ANN401 - a column of `emit`
        return lambda row: "-" if row[name] is None else format(row[name], form)

    emit(
        [workload.model_dump(mode="json") for workload in workloads],
        as_json=False,
        columns={
            "workload": lambda row: row["uuid"][:8],
            "verdict": lambda row: row["verdict"],
            "latency us": number("latency_us", ".2f"),
            "baseline us": number("baseline_us", ".2f"),
            "by": lambda row: row["variant"] or "-",
            "speed-up": number("speedup", ".3f"),
            "95 %": lambda row: "{:.3f} to {:.3f}".format(*row["speedup_ci95"]) if row["speedup_ci95"] else "-",
            "bound us": number("sol_us", ".2f"),
            "score": number("score", ".3f"),
            "max error": number("max_abs_error", ".2g"),
            "blocks": lambda row: f"{row['blocks']}" + (f" (-{row['discarded']})" if row["discarded"] else ""),
        },
        empty="no workload was judged",
    )
