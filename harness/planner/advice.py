"""A model's proposal of who works on what, and whether it holds: within these limits it may override the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import FormatError
from harness.model.assignment import Assignment
from harness.planner.decision import Decision, PolicyInputs

_LONGEST = 300


class ProposedRow(BaseModel):
    """One worker's row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: str
    problem: str
    wanted: str = Field(default="", max_length=_LONGEST)
    """One line for the worker: what to try, what limits the kernel now."""
    reason: str = Field(min_length=1, max_length=_LONGEST)
    """One line for people: why this worker, why there."""


class Proposal(BaseModel):
    """What a model proposes: a row for each worker that is to work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    assignments: tuple[ProposedRow, ...]


@dataclass(frozen=True)
class Advice:
    """A proposal that holds."""

    decision: Decision
    by: str
    """Recorded with it, in place of the policy's name."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Problem -> the reason, for COORDINATION.md."""


Adviser = Callable[[PolicyInputs, Decision], Advice | None]
"""Gets the inputs and what the policy decides; None when it has nothing better, is away, slow or wrong."""

SCHEMA = {
    "type": "object",
    "properties": {
        "assignments": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "worker": {"type": "string"},
                    "problem": {"type": "string"},
                    "wanted": {"type": "string", "description": "one line for the worker: what to try"},
                    "reason": {"type": "string", "description": "one line for people: why"},
                },
                "required": ["worker", "problem", "reason"],
            },
        }
    },
    "required": ["assignments"],
}
"""The proposal's form, for the tool it comes by."""


def read_proposal(given: object) -> Proposal:
    """A proposal from a tool's arguments.

    Raises:
        FormatError: it is none; says what is wrong.
    """
    try:
        return Proposal.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise FormatError(
            f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}", where="proposal"
        ) from error


def accepted(proposal: Proposal, inputs: PolicyInputs, by: str) -> Advice:
    """The decision that a proposal makes.

    Rows that a person pinned or paused stay as they are, whatever it says of them.

    Raises:
        FormatError: it does not hold; says why, for who made it.
    """
    kept = tuple(row for row in inputs.assignments if row.state != "active")
    pinned = {row.worker for row in kept if row.state == "pinned"}
    rows = [row for row in proposal.assignments if row.worker not in pinned]
    _check(rows, inputs, paused={row.problem for row in kept if row.state == "paused"}, pinned=pinned)
    present = {row.worker: row for row in inputs.assignments if row.state == "active"}
    assignments = [*kept]
    for row in sorted(rows, key=lambda each: each.worker):
        was = present.get(row.worker)
        wanted = row.wanted or (was.wanted if was and was.problem == row.problem else row.reason)
        assignments.append(Assignment(worker=row.worker, problem=row.problem, wanted=wanted))
    reasons = {row.worker: row.reason for row in rows} | dict.fromkeys(pinned, "pinned by a person")
    notes = {row.problem: row.reason for row in rows}
    return Advice(Decision(assignments=tuple(assignments), reasons=dict(sorted(reasons.items()))), by, notes)


def _check(rows: list[ProposedRow], inputs: PolicyInputs, *, paused: set[str], pinned: set[str]) -> None:
    workers = {each.worker: each for each in inputs.workers}
    open_problems = {each.problem for each in inputs.problems} - paused
    for worker, count in Counter(row.worker for row in rows).items():
        if count > 1:
            raise _wrong(f"{worker} has {count} rows; expected one")
    for row in rows:
        if row.worker not in workers:
            raise _wrong(f"{row.worker} is no worker; there are: {', '.join(sorted(workers))}")
        if row.problem in paused:
            raise _wrong(f"{row.problem} is paused by a person")
        if row.problem not in open_problems:
            raise _wrong(f"{row.problem} is no open problem; there are: {', '.join(sorted(open_problems))}")
        if workers[row.worker].finished.get(row.problem) == "exhausted":
            raise _wrong(f"{row.worker} has nothing left to try on {row.problem}")
    _check_spread(rows, inputs, open_problems, pinned)


def _check_spread(rows: list[ProposedRow], inputs: PolicyInputs, open_problems: set[str], pinned: set[str]) -> None:
    """Nobody idle who could work, and no problem without anybody while another has two."""
    workers = {each.worker: each for each in inputs.workers}
    idle = [name for name in workers if name not in pinned and name not in {row.worker for row in rows}]
    able = [name for name in idle if open_problems - set(workers[name].finished)]
    if able:
        raise _wrong(f"{able[0]} has no row, and there is work for it")
    crowd = Counter(row.problem for row in rows)
    shared = [problem for problem, count in crowd.items() if count > 1]
    free = open_problems - set(crowd) - {row.problem for row in inputs.assignments if row.state == "pinned"}
    for problem in shared:
        for row in rows:
            if row.problem == problem and free - set(workers[row.worker].finished):
                raise _wrong(f"{problem} has {crowd[problem]} workers while {min(free)} has none")


def _wrong(what: str) -> FormatError:
    return FormatError(what, where="proposal")
