"""The policies there are to compare: each a pure function of the same recorded inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from harness.errors import ConfigurationError
from harness.model.assignment import Assignment
from harness.planner.policy import NAME, Decision, PolicyInputs, decide


def least_tried(inputs: PolicyInputs) -> Decision:
    """The simplest policy worth beating: each worker goes where the fewest evaluations were made, and stays a slice."""
    kept = tuple(row for row in inputs.assignments if row.state != "active")
    paused = {row.problem for row in kept if row.state == "paused"}
    pinned = {row.worker for row in kept if row.state == "pinned"}
    made = {facts.problem: facts.evaluations for facts in inputs.problems if facts.problem not in paused}
    crowd = Counter(row.problem for row in kept if row.state == "pinned")
    present = {row.worker: row for row in inputs.assignments if row.state == "active"}
    rows, reasons = [], {}
    for worker in sorted((each for each in inputs.workers if each.worker not in pinned), key=lambda each: each.worker):
        can = [problem for problem in made if problem not in worker.finished]
        here = present.get(worker.worker)
        if here is not None and here.problem in can and worker.stint < inputs.policy.slice_evaluations:
            row, reason = here, "stays for its slice"
        elif can:
            problem = min(can, key=lambda each: (crowd[each], made[each], each))
            row, reason = Assignment(worker=worker.worker, problem=problem, wanted="least tried"), "least tried"
        else:
            reasons[worker.worker] = "nothing left to try"
            continue
        crowd[row.problem] += 1
        rows.append(row)
        reasons[worker.worker] = reason
    return Decision(assignments=(*kept, *rows), reasons=reasons)


POLICIES: Mapping[str, Callable[[PolicyInputs], Decision]] = {NAME: decide, "least-tried/1": least_tried}
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
