"""A model's proposal: what holds is taken, what does not is refused with the reason, and people's rows stay."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import ConfigurationError, FormatError
from harness.model.assignment import Assignment
from harness.planner.advice import accepted, read_proposal
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, WorkerFacts
from harness.planner.policies import POLICIES, policy_named
from harness.planner.policy import NAME, decide
from harness.planner.replay import Replayed, compare


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


def test_a_proposal_that_holds_is_taken_with_its_reasons() -> None:
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
    ("rows", "why"),
    [
        ({"w01": "t/a"}, "w02 has no row"),
        ({"w01": "t/a", "w02": "t/a"}, "t/a has 2 workers while t/b has none"),
        ({"w01": "t/a", "w02": "t/zz"}, "t/zz is no open problem"),
        ({"w01": "t/a", "w02": "t/b", "w03": "t/c"}, "w03 is no worker"),
        ({"w01": "t/a", "w02": "t/c"}, "t/c is paused"),
        ({"w01": "t/b", "w02": "t/a"}, "w01 has nothing left to try on t/b"),
    ],
)
def test_what_does_not_hold_is_refused_with_the_reason(rows: dict[str, str], why: str) -> None:
    paused = [Assignment(worker="-", problem="t/c", state="paused")] if "paused" in why else []
    finished = {"w01": {"t/b": "exhausted"}} if "nothing left" in why else {}
    with pytest.raises(FormatError, match=why):
        accepted(read_proposal(proposal(**rows)), inputs(*paused, **finished), "claude")


def test_two_rows_for_one_worker_are_refused() -> None:
    twice = {"assignments": [*proposal(w01="t/a", w02="t/b")["assignments"], *proposal(w01="t/c")["assignments"]]}
    with pytest.raises(FormatError, match="w01 has 2 rows; expected one"):
        accepted(read_proposal(twice), inputs(), "claude")


@pytest.mark.parametrize(
    "given",
    [None, {}, {"assignments": 3}, {"assignments": [{"worker": "w01"}]}, {"assignments": [], "more": 1}, "text"],
)
def test_what_is_no_proposal_is_said(given: object) -> None:
    with pytest.raises(FormatError, match="proposal"):
        read_proposal(given)


def test_policies_are_compared_on_the_same_recorded_inputs() -> None:
    asked = inputs(Assignment(worker="w01", problem="t/a"), Assignment(worker="w02", problem="t/b"))
    found = [Replayed(1, "now", "x", decide(asked), decide(asked), asked)]
    compared = {one.policy: one for one in compare(found, POLICIES)}
    ours, simple = compared[NAME], compared["least-tried/1"]
    assert set(compared) == set(POLICIES)
    assert (ours.decisions, ours.same) == (1, 1)
    assert simple.idle == 0
    assert simple.value > 0


def test_least_tried_goes_where_little_was_done_and_obeys_people() -> None:
    facts = tuple(ProblemFacts(problem=name, evaluations=n) for name, n in (("t/a", 9), ("t/b", 1), ("t/c", 0)))
    asked = PolicyInputs(
        problems=facts,
        workers=(WorkerFacts(worker="w01"), WorkerFacts(worker="w02")),
        assignments=(Assignment(worker="-", problem="t/c", state="paused"),),
    )
    _, policy = policy_named("least-tried")
    assert table(policy(asked)) == {"-": "t/c", "w01": "t/b", "w02": "t/a"}
    with pytest.raises(ConfigurationError, match="no policy `best`; there are"):
        policy_named("best")
