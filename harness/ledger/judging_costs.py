"""Device time by problem: seconds of building and judging, and of each stage, from the index."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.ledger.entry_rows import stages_from_text
from harness.ledger.index import Index
from harness.model.judging import JudgeStage


@dataclass(frozen=True)
class JudgingCost:
    """Seconds of building and judging of several entries."""

    problem: str | None
    """Key of the entries' problem; None for all problems together."""
    entries: Mapping[str, int]
    """Kind of entry -> number of entries, only kinds with entries."""
    total_s: float
    median_s: float
    """Of an entry."""
    stages: Mapping[JudgeStage, float]
    """Stage -> seconds, only stages that took time, in the order of `JudgeStage`."""

    def share(self, stage: JudgeStage) -> float:
        """Return the share of a stage in the total, from 0 to 1."""
        return self.stages.get(stage, 0.0) / self.total_s if self.total_s else 0.0

    def for_scripts(self) -> dict[str, Any]:
        """Return the cost as an object of JSON."""
        return {
            "problem": self.problem,
            "entries": dict(self.entries),
            "total_s": round(self.total_s, 3),
            "median_s": round(self.median_s, 3),
            "stages": {str(stage): round(seconds, 3) for stage, seconds in self.stages.items()},
        }


@dataclass(frozen=True)
class JudgingCosts:
    """Costs of all problems together and of each."""

    of_all: JudgingCost
    by_problem: Sequence[JudgingCost]
    """The largest total first."""

    def for_scripts(self) -> dict[str, Any]:
        """Return the costs as an object of JSON."""
        return {"all": self.of_all.for_scripts(), "problems": [cost.for_scripts() for cost in self.by_problem]}


@dataclass(frozen=True)
class _EntryCost:
    kind: str
    seconds: float
    stages: Mapping[JudgeStage, float]


def judging_costs(
    index: Index, *, problem: str | None = None, run: str | None = None, target: str | None = None
) -> JudgingCosts:
    """Return the costs of the entries with a measurement. None means any value.

    The time of an entry without stages is `other`.

    Args:
        index: index of the ledger, refreshed by the caller.
        problem: the problem's key, `suite/name`.
        run: the run's name.
        target: the target's name.
    """
    sql = (
        "SELECT problem, kind, cost_s, stages_text FROM entries WHERE cost_s IS NOT NULL "
        "AND (:problem IS NULL OR problem = :problem) AND (:run IS NULL OR run = :run) "
        "AND (:target IS NULL OR target = :target)"
    )
    by_problem: defaultdict[str, list[_EntryCost]] = defaultdict(list)
    for key, kind, seconds, text in index.query(sql, {"problem": problem, "run": run, "target": target}):
        stages = stages_from_text(text) or {JudgeStage.OTHER: seconds}
        by_problem[key].append(_EntryCost(kind, seconds, stages))
    costs = [_cost(key, entries) for key, entries in by_problem.items()]
    costs.sort(key=lambda cost: (-cost.total_s, cost.problem))
    return JudgingCosts(_cost(None, [entry for entries in by_problem.values() for entry in entries]), costs)


def _cost(problem: str | None, entries: Sequence[_EntryCost]) -> JudgingCost:
    seconds = [entry.seconds for entry in entries]
    return JudgingCost(
        problem=problem,
        entries=dict(Counter(entry.kind for entry in entries).most_common()),
        total_s=sum(seconds),
        median_s=statistics.median(seconds) if seconds else 0.0,
        stages=_sum(entry.stages for entry in entries),
    )


def _sum(parts: Iterable[Mapping[JudgeStage, float]]) -> dict[JudgeStage, float]:
    sums = dict.fromkeys(JudgeStage, 0.0)
    for stages in parts:
        for stage, seconds in stages.items():
            sums[stage] += seconds
    return {stage: seconds for stage, seconds in sums.items() if seconds > 0}
