"""The policy `coverage-then-gain`, with a fixed estimate of the gain of one more evaluation of a problem.

It was the planner's policy until ADR 40. It remains for decisions that it made, and for comparisons. Its rules, in
order of importance:

1. A row that a person pinned does not change; a problem that a person paused gets no worker.
2. A worker stays on its problem for one slice (`policy.slice_evaluations`), unless it has nothing left to try there.
3. Coverage: problems with less than one slice of evaluations come first, the least covered first.
4. Then problems are ordered by expected gain per cost (`value`). A stale problem is chosen only if nothing else is
   left, or after `policy.return_after` evaluations on other problems.
5. A problem gets a second worker only if nothing else is open to that worker.
"""

from __future__ import annotations

from harness.model.config import PolicyConfig
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, mean_cost_s
from harness.planner.placement import OPEN, STALE, UNCOVERED, Rank, place_workers

NAME = "coverage-then-gain/1"
"""Name that is recorded with each decision. It changes whenever the same inputs may give another decision."""

_COST_RANGE = (0.25, 4.0)
"""Limits of the cost relative to the mean, so that a problem with one slow build is still chosen."""
_UNKNOWN_HEADROOM = 0.5
"""Headroom of a problem without a passed solution: that of a solution exactly as fast as the baseline."""


def decide(inputs: PolicyInputs) -> Decision:
    """Assign workers to problems.

    Rows that a person pinned or paused do not change. A worker that has nothing left to try gets no row.
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
    """Return the expected gain per cost of one more evaluation, a number without a unit.

    The result is headroom x (hope + slope) x useful x fresh / cost. `headroom` is the distance to the bound. `hope`
    falls with evaluations without gain. `slope` is the recent gain. `useful` is the share of evaluations that passed,
    and `fresh` the share of submissions that were no duplicates, both by Laplace's rule of succession. `cost` is the
    mean cost of the problem's evaluations, relative to that of all problems.

    Args:
        facts: of the problem.
        policy: `stale_after` sets how fast the first term falls.
        mean_cost_s: mean seconds of building and judging of one evaluation, over all problems.
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
    cheapest, dearest = _COST_RANGE
    return max(headroom, 0.01) * (hope + slope) * useful * fresh / min(max(cost, cheapest), dearest)
