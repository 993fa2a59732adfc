"""All policies, for comparisons; each is a pure function of the same recorded inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from harness.errors import ConfigurationError
from harness.model.assignment import Assignment
from harness.model.config import PolicyConfig
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, WorkerFacts, mean_cost_s
from harness.planner.placement import OPEN, STALE, UNCOVERED, Rank, place_workers
from harness.planner.policy import NAME, decide

_COST_RANGE = (0.25, 4.0)
"""Limits of the cost relative to the mean, so that a problem with one slow build is still chosen."""
_UNKNOWN_HEADROOM = 0.5
"""Headroom of a problem without a passed solution: that of a solution exactly as fast as the baseline."""


def least_tried(inputs: PolicyInputs) -> Decision:
    """Assign each worker for a slice to the problem with the fewest evaluations that it has not finished."""
    return _spread(inputs, lambda worker, _: set(worker.finished))


def round_robin(inputs: PolicyInputs) -> Decision:
    """Spread evaluations evenly without end; every other policy must be better than this one.

    It differs from `least_tried` in three rules. No worker comes to a problem on which another one stays while a
    problem without a worker is left. A problem that is stale for a worker is open to it again in its turn, so that no
    worker is idle. A worker that has just finished its problem moves at once.
    """
    return _spread(
        inputs,
        lambda worker, present: {
            problem for problem, reason in worker.finished.items() if reason == "exhausted" or problem == present
        },
        apart=True,
    )


def _spread(
    inputs: PolicyInputs, closed: Callable[[WorkerFacts, str | None], set[str]], *, apart: bool = False
) -> Decision:
    """Assign each worker to the open problem with the fewest workers and evaluations.

    Args:
        inputs: of the decision.
        closed: (a worker, its present problem) -> problems that are closed to it at present.
        apart: count workers that are placed later on their present problems, so that no other worker joins them.
    """
    fixed = tuple(row for row in inputs.assignments if row.state != "active")
    paused = {row.problem for row in fixed if row.state == "paused"}
    pinned = {row.worker for row in fixed if row.state == "pinned"}
    evaluations = {facts.problem: facts.evaluations for facts in inputs.problems if facts.problem not in paused}
    order = sorted(evaluations, key=lambda problem: (evaluations[problem], problem))
    crowd = Counter(row.problem for row in fixed if row.state == "pinned")
    present = {row.worker: row for row in inputs.assignments if row.state == "active"}
    rows, reasons = [], {}
    free = [worker for worker in inputs.workers if worker.worker not in pinned]
    if apart:
        crowd.update(present[worker.worker].problem for worker in free if worker.worker in present)
    for worker in sorted(free, key=lambda facts: facts.worker):
        own = present.get(worker.worker)
        if apart and own is not None:
            crowd[own.problem] -= 1
        shut = closed(worker, own.problem if own else None)
        stays = own is not None and own.problem in evaluations and own.problem not in shut
        if own is not None and stays and worker.stint < inputs.policy.slice_evaluations:
            row, reason = own, "stays for its slice"
        elif problem := min((name for name in order if name not in shut), key=crowd.__getitem__, default=None):
            row, reason = Assignment(worker=worker.worker, problem=problem, wanted="least tried"), "least tried"
        else:
            reasons[worker.worker] = "nothing left to try"
            continue
        crowd[row.problem] += 1
        rows.append(row)
        reasons[worker.worker] = reason
    return Decision(assignments=(*fixed, *rows), reasons=reasons)


def coverage_then_gain(inputs: PolicyInputs) -> Decision:
    """Assign workers with a fixed estimate of the gain of one more evaluation of a problem.

    It was the planner's policy until ADR 40. It remains for decisions that it made, and for comparisons. Its rules, in
    order of importance:

    1. A row that a person pinned does not change; a problem that a person paused gets no worker.
    2. A worker stays on its problem for one slice (`policy.slice_evaluations`), unless it has nothing left to try
       there; then it gets no row.
    3. Coverage: problems with less than one slice of evaluations come first, the least covered first.
    4. Then problems are ordered by expected gain per cost (`value`). A stale problem is chosen only if nothing else is
       left, or after `policy.return_after` evaluations on other problems.
    5. A problem gets a second worker only if nothing else is open to that worker.
    """
    mean = mean_cost_s(inputs.problems)
    ranks = {facts.problem: _rank(facts, inputs.policy, mean) for facts in inputs.problems}
    return place_workers(inputs, ranks, _why_go, leave_finished=False)


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


ROUND_ROBIN = "round-robin/1"
COVERAGE_THEN_GAIN = "coverage-then-gain/1"

POLICIES: Mapping[str, Callable[[PolicyInputs], Decision]] = {
    NAME: decide,
    COVERAGE_THEN_GAIN: coverage_then_gain,
    "least-tried/1": least_tried,
    ROUND_ROBIN: round_robin,
}
"""Name -> policy. A name changes whenever the same inputs may give another decision."""


def policy_named(name: str) -> tuple[str, Callable[[PolicyInputs], Decision]]:
    """Return the full name and the function of a policy, by its name with or without the version.

    Raises:
        ConfigurationError: no policy has that name.
    """
    for full, policy in POLICIES.items():
        if name in {full, full.partition("/")[0]}:
            return full, policy
    raise ConfigurationError(f"no policy `{name}`; there are: {', '.join(POLICIES)}", where="--policy")
