"""The planner's policy, which assigns workers to problems by a pure function of the ledger's facts.

`decide` reads no files and has no state. The same inputs always give the same decision, so that recorded inputs can be
decided again, by this policy or another, without a device. `harness.planner.placement` applies the rules for pinned
rows, slices and coverage. This module ranks the problems by an upper confidence bound (UCB) of the expected gain per
cost.

The gain of an evaluation is ln of the speed-up that it adds. The expected gain for a problem is the mean gain of the
last half of its evaluations, shrunk towards the rate of its family (the suite) times the headroom that is left. The
rate of a family is shrunk towards that of all problems. A problem with few evaluations gets a larger bonus. ADR 40 has
the reasons; docs/explanation/simulation.md has the comparison.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, mean_cost_s
from harness.planner.placement import OPEN, UNCOVERED, Rank, place_workers

NAME = "gain-bandit/1"
"""Name that is recorded with each decision. It changes whenever the same inputs may give another decision."""

_PRIOR_EVALUATIONS = 20.0
"""Weight of the family's rate relative to a problem's own evaluations, in evaluations."""
_FAMILY_PRIOR = 60.0
"""Weight of the rate of all problems relative to a family's, in evaluations x headroom."""
_FIRST_GUESS = (0.05, 10.0)
"""Gain, and evaluations x headroom, that are assumed before the first evaluation."""
_OPTIMISM = 1.0
"""Distance of the bound above the expectation, in standard errors."""
_JUMP = 0.1
"""A typical gain, as a share of the headroom that is left. With the rate it gives the variance of the gains."""
_CATCH_UP = 0.3
"""-ln(speed-up) at which a gain counts half: below the baseline, a gain is not a speed-up yet."""
_OVERHEAD_S = 600.0
"""Seconds of an agent's work per evaluation that count as its cost, besides judging: half of the measured time."""
_LONGEST_GAIN = 2.0
"""Largest gain of one half that counts. A larger one (e^2) repairs a very slow solution and does not repeat."""


def decide(inputs: PolicyInputs) -> Decision:
    """Assign workers to problems.

    Rows that a person pinned or paused do not change. A worker that has nothing left to try gets no row.
    """
    expected = expected_gains(inputs.problems)
    slice_evaluations = inputs.policy.slice_evaluations
    ranks = {
        facts.problem: Rank(UNCOVERED, facts.evaluations, expected[facts.problem])
        if facts.evaluations < slice_evaluations
        else Rank(OPEN, 0, expected[facts.problem])
        for facts in inputs.problems
    }
    return place_workers(inputs, ranks, _why_go)


def expected_gains(problems: Sequence[ProblemFacts]) -> dict[str, float]:
    """Return the upper confidence bound of the gain (ln of the added speed-up) per evaluation and cost, by problem."""
    rooms = _headrooms(problems)
    rates = _family_rates(problems, rooms)
    cost_s = mean_cost_s(problems)
    return {
        facts.problem: _optimistic_gain(facts, rooms[facts.problem], rates[_family(facts.problem)])
        / _relative_cost(facts, cost_s)
        for facts in problems
    }


def headroom(facts: ProblemFacts) -> float | None:
    """Return ln of the speed-up that is left to the bound; None before a solution has passed.

    The SOL score S = 1 / (1 + (T - T_sol) / (T_b - T_sol)) and the speed-up T_b / T give T_sol. If they contradict each
    other, as is possible with several workloads, the result is 1 - S, a good approximation for small headrooms.
    """
    if facts.speedup is None or facts.score is None:
        return None
    latency, ratio = 1.0 / facts.speedup, 1.0 / facts.score - 1.0 if facts.score > 0 else math.inf
    bound = (latency - ratio) / (1.0 - ratio) if ratio not in {1.0, math.inf} else 0.0
    left = math.log(latency / bound) if 0.0 < bound < latency else 1.0 - facts.score
    return max(left, 0.01)


def _headrooms(problems: Sequence[ProblemFacts]) -> dict[str, float]:
    """Return the headroom of each problem; without a passed solution, the mean of the other problems."""
    headrooms = {facts.problem: headroom(facts) for facts in problems}
    typical = mean([room for room in headrooms.values() if room is not None] or [0.5])
    return {problem: typical if room is None else room for problem, room in headrooms.items()}


def _family(problem: str) -> str:
    return problem.partition("/")[0]


def _family_rates(problems: Sequence[ProblemFacts], rooms: dict[str, float]) -> dict[str, float]:
    """Return the gain of one evaluation for each unit of headroom, by family."""
    gains: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    for facts in problems:
        gains[_family(facts.problem)] += _half_gain(facts)
        weights[_family(facts.problem)] += rooms[facts.problem] * facts.evaluations / 2
    guess, weight = _FIRST_GUESS
    overall = (sum(gains.values()) + guess) / (sum(weights.values()) + weight)
    return {family: (gains[family] + overall * _FAMILY_PRIOR) / (weights[family] + _FAMILY_PRIOR) for family in weights}


def _half_gain(facts: ProblemFacts) -> float:
    return min(max(facts.half_gain, 0.0), _LONGEST_GAIN)


def _optimistic_gain(facts: ProblemFacts, room: float, family_rate: float) -> float:
    weight = facts.evaluations / 2 + _PRIOR_EVALUATIONS
    rate = (_half_gain(facts) + family_rate * room * _PRIOR_EVALUATIONS) / weight
    # Gains of a typical size that come at random have the variance rate x size.
    bound = rate + _OPTIMISM * math.sqrt(rate * _JUMP * room / weight)
    if facts.speedup is None:
        return bound / (1.0 + 1.0 / _CATCH_UP)
    return bound / (1.0 + max(0.0, -math.log(facts.speedup)) / _CATCH_UP)


def _relative_cost(facts: ProblemFacts, mean_s: float) -> float:
    own_s = facts.cost_s / facts.evaluations if facts.evaluations else mean_s
    return (_OVERHEAD_S + own_s) / (_OVERHEAD_S + mean_s)


def _why_go(facts: ProblemFacts, rank: Rank) -> str:
    score = "no score yet" if facts.score is None else f"score {facts.score:.2f} of 1"
    gains = f"{facts.gains} gain{'' if facts.gains == 1 else 's'} in {facts.evaluations} evaluations"
    return f"expected gain {100 * rank.value:.2g} % an evaluation: {score}, {gains}"
