"""The policies there are to compare: each a pure function of the same recorded inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from harness.errors import ConfigurationError
from harness.model.assignment import Assignment
from harness.planner import coverage_then_gain
from harness.planner.decision import Decision, PolicyInputs, WorkerFacts
from harness.planner.policy import NAME, decide


def least_tried(inputs: PolicyInputs) -> Decision:
    """Send each worker to the problem with the fewest evaluations, for a slice; never back to one that it finished."""
    return _spread(inputs, lambda worker, _: set(worker.finished))


def round_robin(inputs: PolicyInputs) -> Decision:
    """Spread evaluations evenly, for ever: the policy that every other one must beat.

    As `least_tried`, but no worker comes to a problem where another one stays while one without a worker is left. A
    problem that is stale for a worker is open to it again when its turn comes, so that no worker is idle. A worker that
    has just finished its problem moves on at once.
    """
    return _spread(
        inputs,
        lambda worker, here: {
            problem for problem, reason in worker.finished.items() if reason == "exhausted" or problem == here
        },
        apart=True,
    )


def _spread(
    inputs: PolicyInputs, closed: Callable[[WorkerFacts, str | None], set[str]], *, apart: bool = False
) -> Decision:
    """Even out evaluations.

    Args:
        inputs: of the decision.
        closed: (a worker, the problem it is on) -> problems on which it can do nothing now.
        apart: count workers that are placed later as being where they are, so that no other worker joins them.
    """
    kept = tuple(row for row in inputs.assignments if row.state != "active")
    paused = {row.problem for row in kept if row.state == "paused"}
    pinned = {row.worker for row in kept if row.state == "pinned"}
    evaluations = {facts.problem: facts.evaluations for facts in inputs.problems if facts.problem not in paused}
    order = sorted(evaluations, key=lambda problem: (evaluations[problem], problem))
    crowd = Counter(row.problem for row in kept if row.state == "pinned")
    present = {row.worker: row for row in inputs.assignments if row.state == "active"}
    rows, reasons = [], {}
    free = [worker for worker in inputs.workers if worker.worker not in pinned]
    if apart:
        crowd.update(present[worker.worker].problem for worker in free if worker.worker in present)
    for worker in sorted(free, key=lambda facts: facts.worker):
        here = present.get(worker.worker)
        if apart and here is not None:
            crowd[here.problem] -= 1
        shut = closed(worker, here.problem if here else None)
        stays = here is not None and here.problem in evaluations and here.problem not in shut
        if here is not None and stays and worker.stint < inputs.policy.slice_evaluations:
            row, reason = here, "stays for its slice"
        elif problem := min((name for name in order if name not in shut), key=crowd.__getitem__, default=None):
            row, reason = Assignment(worker=worker.worker, problem=problem, wanted="least tried"), "least tried"
        else:
            reasons[worker.worker] = "nothing left to try"
            continue
        crowd[row.problem] += 1
        rows.append(row)
        reasons[worker.worker] = reason
    return Decision(assignments=(*kept, *rows), reasons=reasons)


ROUND_ROBIN = "round-robin/1"

POLICIES: Mapping[str, Callable[[PolicyInputs], Decision]] = {
    NAME: decide,
    coverage_then_gain.NAME: coverage_then_gain.decide,
    "least-tried/1": least_tried,
    ROUND_ROBIN: round_robin,
}
"""Name -> policy. A name changes whenever the same inputs may give another decision."""


def policy_named(name: str) -> tuple[str, Callable[[PolicyInputs], Decision]]:
    """A policy by its name, with or without its version.

    Raises:
        ConfigurationError: there is none of that name.
    """
    for full, policy in POLICIES.items():
        if name in {full, full.partition("/")[0]}:
            return full, policy
    raise ConfigurationError(f"no policy `{name}`; there are: {', '.join(POLICIES)}", where="--policy")
