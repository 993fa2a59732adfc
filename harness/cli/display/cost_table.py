"""The table of `harness log --cost`: seconds of judging by problem, and the share of each stage."""

from __future__ import annotations

from collections.abc import Callable

from harness.cli.display.tables import Column, table_lines
from harness.ledger.judging_costs import JudgingCost, JudgingCosts
from harness.model.judging import JudgeStage

_ALL = "all problems"
_SHORT_KINDS = {"evaluation": "eval", "confirmation": "confirm"}
_ENTRIES_RANK = 100
"""The kinds of entries are shortened before a stage is omitted."""


def cost_lines(costs: JudgingCosts, width: int | None) -> list[str]:
    """Return the costs as a table: all problems together, then each problem, the largest total first.

    On a narrow screen, the stages with the smallest shares are omitted.

    Args:
        costs: the costs.
        width: in characters; None for no limit.
    """
    stages = costs.of_all.stages
    ranks = {stage: rank for rank, stage in enumerate(sorted(stages, key=lambda stage: -stages[stage]))}
    columns = (
        Column[JudgingCost]("problem", lambda cost: cost.problem or _ALL, min_width=16),
        Column[JudgingCost]("entries", _entries, ((_ENTRIES_RANK, _count),)),
        Column[JudgingCost]("total", lambda cost: f"{cost.total_s:.1f} s"),
        Column[JudgingCost]("median", lambda cost: f"{cost.median_s:.2f} s"),
        *(Column[JudgingCost](str(stage), _share(stage), ((ranks[stage], None),)) for stage in stages),
    )
    rows = [costs.of_all, *costs.by_problem] if len(costs.by_problem) > 1 else costs.by_problem
    return table_lines(rows, columns, width)


def _entries(cost: JudgingCost) -> str:
    return ", ".join(f"{count} {_SHORT_KINDS.get(kind, kind)}" for kind, count in cost.entries.items())


def _count(cost: JudgingCost) -> str:
    return str(sum(cost.entries.values()))


def _share(stage: JudgeStage) -> Callable[[JudgingCost], str]:
    def cell(cost: JudgingCost) -> str:
        percent = 100 * cost.share(stage)
        return "-" if not percent else "<1 %" if percent < 1 else f"{percent:.0f} %"

    return cell
