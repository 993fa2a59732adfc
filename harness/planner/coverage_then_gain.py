"""The policy `coverage-then-gain`: a fixed estimate of what one more evaluation of a problem gains.

It was the planner's policy until ADR 40 and stays for decisions that it made, and to be compared with. In order of
weight:

1. What a person pinned stays; a problem a person paused gets no worker.
2. A worker stays where it is for one slice (`policy.slice_evaluations`) unless the problem has nothing left for it.
3. Coverage: problems with less than one slice of evaluations come first, the least covered first.
4. Then the highest expected gain per cost (`value`); stale problems only when nothing else is left or when
   `policy.return_after` evaluations went elsewhere since.
5. Two workers share a problem only when nothing else is open to the second one.
"""

from __future__ import annotations

from harness.model.config import PolicyConfig
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, mean_cost_s
from harness.planner.placement import OPEN, STALE, UNCOVERED, Rank, place_workers

NAME = "coverage-then-gain/1"
"""Recorded with each decision; changes whenever the same inputs may give another decision."""

_COST_RANGE = (0.25, 4.0)
"""Costs relative to the mean are held within this range, so that one slow build does not starve a problem."""
_UNKNOWN_HEADROOM = 0.5
"""Headroom of a problem nothing has passed on yet: that of a solution exactly as fast as the baseline."""


def decide(inputs: PolicyInputs) -> Decision:
    """Assign workers to problems.

    Rows that a person pinned or paused are kept byte for byte. A worker for whom nothing is left gets no row.
    """
    mean = mean_cost_s(inputs.problems)
    return place_workers(
        inputs,
        {facts.problem: _rank(facts, inputs.policy, mean) for facts in inputs.problems},
        _why_go,
        leave_finished=False,
    )


def _rank(facts: ProblemFacts, policy: PolicyConfig, mean: float) -> Rank:
    worth = value(facts, policy, mean)
    if facts.evaluations < policy.slice_evaluations:
        return Rank(UNCOVERED, facts.evaluations, worth)
    if facts.since_gain >= policy.stale_after and facts.elsewhere < policy.return_after:
        return Rank(STALE, -facts.elsewhere, worth)
    return Rank(OPEN, 0, worth)


def _why_go(facts: ProblemFacts, rank: Rank) -> str:
    score = "no score yet" if facts.score is None else f"score {facts.score:.2f} of 1"
    return f"expected gain {rank.value:.2g}: {score}, {facts.since_gain} evaluations without gain"


def value(facts: ProblemFacts, policy: PolicyConfig, mean_cost_s: float) -> float:
    """Expected gain per cost of one more evaluation, without a unit.

    headroom to the bound x (hope that fades with evaluations that gained nothing + the recent slope) x the share of
    attempts that are of use (passed, not duplicates; Laplace's rule) / the cost of an evaluation relative to the mean.
    """
    if facts.score is not None:
        headroom = 1.0 - facts.score
    else:
        headroom = 1.0 / (1.0 + facts.speedup) if facts.speedup else _UNKNOWN_HEADROOM
    hope = 1.0 / (1.0 + facts.since_gain / policy.stale_after)
    slope = min(max(facts.recent_gain, 0.0), 1.0)
    useful = (facts.evaluations - facts.failures + 1) / (facts.evaluations + 2)
    fresh = (facts.evaluations + 1) / (facts.evaluations + facts.duplicates + 1)
    cost = 1.0
    if facts.evaluations and mean_cost_s > 0:
        cost = facts.cost_s / facts.evaluations / mean_cost_s
    low, high = _COST_RANGE
    return max(headroom, 0.01) * (hope + slope) * useful * fresh / min(max(cost, low), high)
