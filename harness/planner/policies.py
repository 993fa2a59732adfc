"""All policies, for comparisons; each is a pure function of the same recorded inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from harness.errors import ConfigurationError
from harness.model.assignment import Assignment
from harness.planner.decision import Decision, PolicyInputs, WorkerFacts
from harness.planner.policy import NAME, decide


def round_robin(inputs: PolicyInputs) -> Decision:
    """Spread evaluations evenly without end; every other policy must be better than this one.

    A worker stays on its problem for a slice, and then goes to the open problem with the fewest workers and
    evaluations. No worker comes to a problem on which another one stays while a problem without a worker is left. A
    problem that is stale for a worker is open to it again in its turn, so that no worker is idle. A worker that has
    just finished its problem moves at once.
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
    crowd.update(present[worker.worker].problem for worker in free if worker.worker in present)
    for worker in sorted(free, key=lambda facts: facts.worker):
        own = present.get(worker.worker)
        if own is not None:
            crowd[own.problem] -= 1
        shut = _closed(worker, own.problem if own else None)
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


def _closed(worker: WorkerFacts, present: str | None) -> set[str]:
    return {problem for problem, reason in worker.finished.items() if reason == "exhausted" or problem == present}


ROUND_ROBIN = "round-robin/1"

POLICIES: Mapping[str, Callable[[PolicyInputs], Decision]] = {
    NAME: decide,
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
