"""A model's proposal of assignments, and the rules that it must obey to replace the policy's decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import Field, ValidationError

from harness.errors import FormatError
from harness.model.assignment import Assignment
from harness.model.base_models import StrictModel
from harness.planner.decision import Decision, PolicyInputs

_LONGEST = 300


class ProposedRow(StrictModel):
    """Proposed row of one worker."""

    worker: str
    problem: str
    wanted: str = Field(default="", max_length=_LONGEST, description="one line for the worker: what to try")
    reason: str = Field(min_length=1, max_length=_LONGEST, description="one line for people: why")


class Proposal(StrictModel):
    """Assignments that a model proposes: a row for each worker that is to work."""

    assignments: tuple[ProposedRow, ...]


@dataclass(frozen=True)
class Advice:
    """A proposal that obeys the rules."""

    decision: Decision
    by: str
    """Name of its author, which is recorded in place of the policy's name."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Problem -> the reason, for COORDINATION.md."""


Adviser = Callable[[PolicyInputs, Decision], Advice | None]
"""(inputs, decision of the policy) -> a model's advice; None if the model has none, or does not answer in time."""


def read_proposal(arguments: object) -> Proposal:
    """Return the proposal in the arguments of a tool call.

    Raises:
        FormatError: the arguments are not a proposal; the message names the field.
    """
    try:
        return Proposal.model_validate(arguments)
    except ValidationError as error:
        first = error.errors()[0]
        raise _wrong(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error


def accepted(proposal: Proposal, inputs: PolicyInputs, by: str) -> Advice:
    """Return the advice that a proposal gives.

    Rows that a person pinned or paused do not change, even if the proposal has other rows for them.

    Raises:
        FormatError: the proposal breaks a rule; the message gives the reason, for its author.
    """
    fixed = tuple(row for row in inputs.assignments if row.state != "active")
    pinned = {row.worker for row in fixed if row.state == "pinned"}
    rows = [row for row in proposal.assignments if row.worker not in pinned]
    _check(rows, inputs, paused={row.problem for row in fixed if row.state == "paused"}, pinned=pinned)
    present = {row.worker: row for row in inputs.assignments if row.state == "active"}
    assignments = [*fixed]
    for row in sorted(rows, key=lambda proposed: proposed.worker):
        before = present.get(row.worker)
        task = row.wanted or (before.wanted if before and before.problem == row.problem else row.reason)
        assignments.append(Assignment(worker=row.worker, problem=row.problem, wanted=task))
    reasons = {row.worker: row.reason for row in rows} | dict.fromkeys(pinned, "pinned by a person")
    notes = {row.problem: row.reason for row in rows}
    return Advice(Decision(assignments=tuple(assignments), reasons=dict(sorted(reasons.items()))), by, notes)


def _check(rows: list[ProposedRow], inputs: PolicyInputs, *, paused: set[str], pinned: set[str]) -> None:
    workers = {facts.worker: facts for facts in inputs.workers}
    open_problems = {facts.problem for facts in inputs.problems} - paused
    for worker, count in Counter(row.worker for row in rows).items():
        if count > 1:
            raise _wrong(f"{worker} has {count} rows; expected one")
    for row in rows:
        if row.worker not in workers:
            raise _wrong(f"{row.worker} is not a worker; there are: {', '.join(sorted(workers))}")
        if row.problem in paused:
            raise _wrong(f"{row.problem} is paused by a person")
        if row.problem not in open_problems:
            raise _wrong(f"{row.problem} is not an open problem; there are: {', '.join(sorted(open_problems))}")
        if workers[row.worker].finished.get(row.problem) == "exhausted":
            raise _wrong(f"{row.worker} has nothing left to try on {row.problem}")
    _check_spread(rows, inputs, open_problems, pinned)


def _check_spread(rows: list[ProposedRow], inputs: PolicyInputs, open_problems: set[str], pinned: set[str]) -> None:
    """Check that no worker is idle while work is open to it, and that no open problem is free while another has two."""
    workers = {facts.worker: facts for facts in inputs.workers}
    idle = [name for name in workers if name not in pinned and name not in {row.worker for row in rows}]
    able = [name for name in idle if open_problems - set(workers[name].finished)]
    if able:
        raise _wrong(f"{able[0]} has no row, although a problem is open to it")
    crowd = Counter(row.problem for row in rows)
    shared = [problem for problem, count in crowd.items() if count > 1]
    free = open_problems - set(crowd) - {row.problem for row in inputs.assignments if row.state == "pinned"}
    for problem in shared:
        for row in rows:
            if row.problem == problem and free - set(workers[row.worker].finished):
                raise _wrong(f"{problem} has {crowd[problem]} workers while {min(free)} has none")


def _wrong(message: str) -> FormatError:
    return FormatError(message, where="proposal")
