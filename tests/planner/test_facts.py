"""The facts of problems from standings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.ledger.standings import Gain, Standing
from harness.model.config import PolicyConfig
from harness.planner.decision import ProblemFacts
from harness.planner.facts import problem_facts

POLICY = PolicyConfig(stale_after=10)


def standing(problem: str, evaluations: int, last_at: str | None, *gains: tuple[int, float]) -> Standing:
    return Standing(
        problem=problem,
        evaluations=evaluations,
        verdicts={"PASSED": max(0, evaluations - 2), "TIMEOUT": min(2, evaluations)},
        gains=tuple(Gain(evaluation=at, seq=at, speedup=speedup, worker="w01") for at, speedup in gains),
        since_gain=evaluations - gains[-1][0] if gains else evaluations,
        last_at=last_at,
        cost_s=2.00049,
    )


def facts(*standings: Standing, recent: Sequence[str] = ()) -> dict[str, ProblemFacts]:
    return {standing.problem: problem_facts(standing, recent, POLICY) for standing in standings}


def test_numbers_are_copied_and_failures_counted() -> None:
    problem = facts(standing("t/one", 12, "2026-01-01T00:00:00.000Z", (3, 1.2)))["t/one"]
    assert (problem.evaluations, problem.failures, problem.since_gain, problem.cost_s) == (12, 2, 9, 2.0)
    assert (problem.speedup, problem.score) == (None, None)


def test_the_slope_is_the_gain_of_the_last_evaluations() -> None:
    recent = facts(standing("t/one", 30, "x", (5, 1.5), (25, 2.0)))["t/one"]
    assert recent.recent_gain == round(math.log(2.0 / 1.5), 6)
    old = facts(standing("t/one", 30, "x", (5, 1.5), (18, 2.0)))["t/one"]
    assert old.recent_gain == 0.0
    first = facts(standing("t/one", 4, "x", (2, 3.0)))["t/one"]
    assert first.recent_gain == round(math.log(3.0), 6)
    slower = facts(standing("t/one", 4, "x", (2, 0.5)))["t/one"]
    assert slower.recent_gain == 0.0


def test_the_gain_of_the_last_half_of_the_evaluations() -> None:
    late = facts(standing("t/one", 30, "x", (5, 1.5), (15, 1.6), (16, 2.0)))["t/one"]
    assert (late.gains, late.half_gain) == (3, round(math.log(2.0 / 1.6), 6))
    early = facts(standing("t/one", 30, "x", (5, 1.5), (15, 1.6)))["t/one"]
    assert (early.gains, early.half_gain) == (2, 0.0)
    assert facts(standing("t/one", 0, None))["t/one"].half_gain == 0.0


def test_evaluations_on_other_problems_are_counted() -> None:
    days = [f"2026-01-0{day}T00:00:00.000Z" for day in range(1, 8)]
    problems = facts(
        standing("t/one", 5, days[1]),
        standing("t/two", 70, days[6]),
        standing("t/new", 0, None),
        standing("t/old", 1, "2025-01-01T00:00:00.000Z"),
        recent=days,
    )
    assert {name: problem.elsewhere for name, problem in problems.items()} == {
        "t/one": 5,
        "t/two": 0,
        "t/new": 0,
        "t/old": 7,
    }
