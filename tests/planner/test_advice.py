"""Proposals of a model: valid ones are accepted, others are refused with a reason, and people's rows stay."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import FormatError
from harness.model.assignment import Assignment
from harness.planner.advice import accepted, read_proposal
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, WorkerFacts


def inputs(*rows: Assignment, **finished: dict[str, Any]) -> PolicyInputs:
    return PolicyInputs(
        problems=tuple(ProblemFacts(problem=name, evaluations=5, score=0.6) for name in ("t/a", "t/b", "t/c")),
        workers=tuple(WorkerFacts(worker=name, finished=finished.get(name, {})) for name in ("w01", "w02")),
        assignments=rows,
    )


def proposal(**rows: str) -> dict[str, Any]:
    return {"assignments": [{"worker": w, "problem": p, "reason": "because"} for w, p in rows.items()]}


def table(decision: Decision) -> dict[str, str]:
    return {row.worker: row.problem for row in decision.assignments}


def test_a_valid_proposal_is_accepted_with_its_reasons() -> None:
    advice = accepted(read_proposal(proposal(w01="t/b", w02="t/a")), inputs(), "claude")
    assert table(advice.decision) == {"w01": "t/b", "w02": "t/a"}
    assert advice.decision.reasons == {"w01": "because", "w02": "because"}
    assert advice.notes == {"t/a": "because", "t/b": "because"}


def test_pinned_rows_stay_whatever_is_proposed() -> None:
    pinned = Assignment(worker="w01", problem="t/c", wanted="mine", state="pinned")
    advice = accepted(read_proposal(proposal(w01="t/a", w02="t/a")), inputs(pinned), "claude")
    assert advice.decision.assignments[0] == pinned
    assert table(advice.decision) == {"w01": "t/c", "w02": "t/a"}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"w01": "t/a"}, "w02 has no row"),
        ({"w01": "t/a", "w02": "t/a"}, "t/a has 2 workers while t/b has none"),
        ({"w01": "t/a", "w02": "t/zz"}, "t/zz is not an open problem"),
        ({"w01": "t/a", "w02": "t/b", "w03": "t/c"}, "w03 is not a worker"),
        ({"w01": "t/a", "w02": "t/c"}, "t/c is paused"),
        ({"w01": "t/b", "w02": "t/a"}, "w01 has nothing left to try on t/b"),
    ],
)
def test_an_invalid_proposal_is_refused_with_the_reason(rows: dict[str, str], reason: str) -> None:
    paused = [Assignment(worker="-", problem="t/c", state="paused")] if "paused" in reason else []
    finished = {"w01": {"t/b": "exhausted"}} if "nothing left" in reason else {}
    with pytest.raises(FormatError, match=reason):
        accepted(read_proposal(proposal(**rows)), inputs(*paused, **finished), "claude")


def test_two_rows_for_one_worker_are_refused() -> None:
    twice = {"assignments": [*proposal(w01="t/a", w02="t/b")["assignments"], *proposal(w01="t/c")["assignments"]]}
    with pytest.raises(FormatError, match="w01 has 2 rows; expected one"):
        accepted(read_proposal(twice), inputs(), "claude")


@pytest.mark.parametrize(
    "arguments",
    [None, {}, {"assignments": 3}, {"assignments": [{"worker": "w01"}]}, {"assignments": [], "more": 1}, "text"],
)
def test_arguments_that_are_not_a_proposal_are_refused(arguments: object) -> None:
    with pytest.raises(FormatError, match="proposal"):
        read_proposal(arguments)
