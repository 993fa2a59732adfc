"""The policy: rules for every decision, and decisions in important cases."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model.assignment import Assignment
from harness.model.config import PolicyConfig
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, WorkerFacts
from harness.planner.policies import round_robin
from harness.planner.policy import decide, expected_gains, headroom

POLICY = PolicyConfig(slice_evaluations=4, stale_after=20, return_after=60)
NAMES = [f"suite/p{number}" for number in range(6)]
WORKERS = [f"w{number:02}" for number in range(1, 5)]


def facts(problem: str) -> st.SearchStrategy[ProblemFacts]:
    return st.builds(
        ProblemFacts,
        problem=st.just(problem),
        evaluations=st.integers(0, 80),
        failures=st.just(0),
        duplicates=st.integers(0, 20),
        speedup=st.none() | st.floats(0.1, 50),
        score=st.none() | st.floats(-0.5, 1.5),
        since_gain=st.integers(0, 80),
        recent_gain=st.floats(-1, 4),
        gains=st.integers(0, 80),
        half_gain=st.floats(-1, 4),
        cost_s=st.floats(0, 1000),
        elsewhere=st.integers(0, 100),
    )


def worker(name: str) -> st.SearchStrategy[WorkerFacts]:
    finish = st.sampled_from(["exhausted", "stale"])
    return st.builds(
        WorkerFacts,
        worker=st.just(name),
        stint=st.integers(0, 30),
        finished=st.dictionaries(st.sampled_from(NAMES), finish, max_size=4),
    )


@st.composite
def inputs(draw: st.DrawFn) -> PolicyInputs:
    problems = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    workers = draw(st.lists(st.sampled_from(WORKERS), unique=True, max_size=4))
    row = st.builds(
        Assignment,
        worker=st.sampled_from([*WORKERS, "w99"]),
        problem=st.sampled_from([*NAMES, "suite/unknown"]),
        wanted=st.sampled_from(["", "try wider rows"]),
        state=st.sampled_from(["active", "active", "pinned", "paused"]),
    )
    rows = draw(st.lists(row, max_size=6, unique_by=lambda r: (r.worker, r.state == "paused")))
    return PolicyInputs(
        problems=tuple(draw(facts(problem)) for problem in problems),
        workers=tuple(draw(worker(name)) for name in workers),
        assignments=tuple(rows),
        policy=POLICY,
    )


@given(inputs())
def test_a_decision_obeys_people_and_invents_nothing(given_inputs: PolicyInputs) -> None:
    decision = decide(given_inputs)
    fixed = [row for row in given_inputs.assignments if row.state != "active"]
    assert list(decision.assignments[: len(fixed)]) == fixed
    paused = {row.problem for row in fixed if row.state == "paused"}
    pinned = {row.worker for row in fixed if row.state == "pinned"}
    listed = {facts.problem for facts in given_inputs.problems}
    workers = {facts.worker: facts for facts in given_inputs.workers}
    new = decision.assignments[len(fixed) :]
    assert len({row.worker for row in new}) == len(new)
    for row in new:
        assert row.state == "active"
        assert row.worker in workers
        assert row.worker not in pinned
        assert row.problem in listed - paused
        assert workers[row.worker].finished.get(row.problem) != "exhausted"
    for name, facts_of_worker in workers.items():
        assert decision.reasons[name]
        open_to_it = listed - paused - set(facts_of_worker.finished)
        if open_to_it and name not in pinned:
            assert name in {row.worker for row in new}, "a worker is idle although a problem is open to it"


@given(inputs())
def test_a_decision_is_deterministic_and_survives_being_recorded(given_inputs: PolicyInputs) -> None:
    decision = decide(given_inputs)
    recorded = PolicyInputs.model_validate_json(given_inputs.model_dump_json())
    assert decide(recorded) == decision
    assert Decision.model_validate_json(decision.model_dump_json()) == decision


@given(inputs())
def test_workers_share_a_problem_only_when_nothing_better_is_free(given_inputs: PolicyInputs) -> None:
    fresh = given_inputs.model_copy(
        update={
            "assignments": (),
            "workers": tuple(w.model_copy(update={"finished": {}}) for w in given_inputs.workers),
        }
    )
    worker_counts = Counter(row.problem for row in decide(fresh).assignments)
    if len(fresh.workers) <= len(fresh.problems):
        assert max(worker_counts.values(), default=0) <= 1
    elif worker_counts:
        assert max(worker_counts.values()) - min(worker_counts.values()) <= 1
        assert len(worker_counts) == len(fresh.problems)


def simulate(problems: int, workers: int, evaluations: int) -> list[tuple[str, str]]:
    """Simulate workers that evaluate in turn and never gain; return (worker, problem) in order."""
    state = {name: ProblemFacts(problem=name) for name in NAMES[:problems]}
    facts_of_workers = {name: WorkerFacts(worker=name) for name in WORKERS[:workers]}
    rows: tuple[Assignment, ...] = ()
    trace: list[tuple[str, str]] = []
    while len(trace) < evaluations:
        for name in WORKERS[:workers]:
            decided = decide(
                PolicyInputs(
                    problems=tuple(state.values()),
                    workers=tuple(facts_of_workers.values()),
                    assignments=rows,
                    policy=POLICY,
                )
            )
            before = {row.worker: row.problem for row in rows}
            rows = decided.assignments
            for row in rows:
                if before.get(row.worker) != row.problem:
                    facts_of_workers[row.worker] = WorkerFacts(worker=row.worker)
            own_problem = next(row.problem for row in rows if row.worker == name)
            trace.append((name, own_problem))
            facts_of_workers[name] = WorkerFacts(worker=name, stint=facts_of_workers[name].stint + 1)
            for problem, facts_before in state.items():
                change: dict[str, int | float] = (
                    {
                        "evaluations": facts_before.evaluations + 1,
                        "since_gain": facts_before.since_gain + 1,
                        "cost_s": facts_before.cost_s + 1,
                        "elsewhere": 0,
                    }
                    if problem == own_problem
                    else {"elsewhere": facts_before.elsewhere + 1}
                )
                state[problem] = facts_before.model_copy(update=change)
    return trace


@given(st.integers(1, 6), st.integers(1, 4))
def test_every_problem_gets_its_slice_before_any_gets_much_more(problems: int, workers: int) -> None:
    need = problems * POLICY.slice_evaluations + workers * POLICY.slice_evaluations
    counts = Counter(problem for _, problem in simulate(problems, workers, need))
    assert len(counts) == problems
    assert min(counts.values()) >= POLICY.slice_evaluations


def test_two_workers_cover_six_problems_without_meeting() -> None:
    trace = simulate(6, 2, 24)
    assert Counter(problem for _, problem in trace) == dict.fromkeys(NAMES, 4)
    for first, second in zip(trace[::2], trace[1::2], strict=True):
        assert first[1] != second[1]


def test_a_stale_problem_is_left_and_returned_to() -> None:
    trace = [problem for _, problem in simulate(2, 1, 200)]
    visited_problems = [problem for problem, before in zip(trace, [None, *trace], strict=False) if problem != before]
    assert set(trace) == set(NAMES[:2])
    assert len(visited_problems) > 4, "a worker returns to problems that it left"
    assert max(Counter(trace).values()) <= 120, "no problem gets nearly all evaluations"


def test_workers_share_the_only_problem() -> None:
    decided = decide(
        PolicyInputs(
            problems=(ProblemFacts(problem=NAMES[0]),), workers=tuple(WorkerFacts(worker=name) for name in WORKERS[:2])
        )
    )
    assert [(row.worker, row.problem) for row in decided.assignments] == [("w01", NAMES[0]), ("w02", NAMES[0])]
    assert "shared" in decided.reasons["w02"]


def test_a_worker_whose_tuner_is_done_moves_or_rests() -> None:
    problems = tuple(ProblemFacts(problem=name, evaluations=9) for name in NAMES[:2])
    rows = (Assignment(worker="w01", problem=NAMES[0]),)
    moved = decide(
        PolicyInputs(
            problems=problems,
            workers=(WorkerFacts(worker="w01", stint=1, finished={NAMES[0]: "exhausted"}),),
            assignments=rows,
        )
    )
    assert [row.problem for row in moved.assignments] == [NAMES[1]]
    without_work = decide(
        PolicyInputs(
            problems=problems,
            workers=(WorkerFacts(worker="w01", finished={NAMES[0]: "exhausted", NAMES[1]: "stale"}),),
            assignments=rows,
        )
    )
    assert without_work.assignments == ()
    assert "nothing left" in without_work.reasons["w01"]


def test_a_stale_finish_lapses_after_enough_evaluations_elsewhere() -> None:
    def with_elsewhere(count: int) -> tuple[Assignment, ...]:
        problem = ProblemFacts(problem=NAMES[0], evaluations=30, since_gain=25, elsewhere=count)
        worker_facts = WorkerFacts(worker="w01", finished={NAMES[0]: "stale"})
        return decide(PolicyInputs(problems=(problem,), workers=(worker_facts,), policy=POLICY)).assignments

    assert with_elsewhere(59) == ()
    assert [row.problem for row in with_elsewhere(60)] == [NAMES[0]]


def test_a_worker_moves_after_its_slice_only_for_much_more() -> None:
    def one_move(score: float) -> str:
        problems = (
            ProblemFacts(problem=NAMES[0], evaluations=8, speedup=1.2, score=0.6, cost_s=8),
            ProblemFacts(problem=NAMES[1], evaluations=8, speedup=1.2, score=score, cost_s=8),
        )
        rows = (Assignment(worker="w01", problem=NAMES[0], wanted="as before"),)
        workers = (WorkerFacts(worker="w01", stint=8),)
        return (
            decide(PolicyInputs(problems=problems, workers=workers, assignments=rows, policy=POLICY))
            .assignments[0]
            .problem
        )

    assert one_move(0.595) == NAMES[0]
    assert one_move(0.2) == NAMES[1]


def test_a_worker_that_has_just_finished_its_problem_is_sent_to_another() -> None:
    """Evaluations on other problems may make the problem available again; the worker would be idle there."""
    problems = tuple(ProblemFacts(problem=name, evaluations=30, elsewhere=61) for name in NAMES[:3])
    rows = tuple(Assignment(worker=worker, problem=name) for worker, name in zip(WORKERS[:2], NAMES[:2], strict=True))
    workers = (WorkerFacts(worker="w01", stint=12, finished={NAMES[0]: "stale"}), WorkerFacts(worker="w02", stint=1))
    policy_inputs = PolicyInputs(problems=problems, workers=workers, assignments=rows, policy=POLICY)
    assert [row.problem for row in decide(policy_inputs).assignments] == [NAMES[2], NAMES[1]]
    only = policy_inputs.model_copy(update={"problems": problems[:1], "workers": workers[:1], "assignments": rows[:1]})
    assert [row.problem for row in decide(only).assignments] == [NAMES[0]]


def test_headroom_follows_from_score_and_speedup() -> None:
    """A bound of 4x and a speed-up of 1.6: 2.5x is left. A score that fits no bound counts by itself."""
    score = 1 / (1 + (1 / 1.6 - 0.25) / 0.75)
    assert headroom(ProblemFacts(problem="s/p", speedup=1.6, score=score)) == pytest.approx(math.log(2.5))
    assert headroom(ProblemFacts(problem="s/p", speedup=1.2, score=0.2)) == pytest.approx(0.8)
    assert headroom(ProblemFacts(problem="s/p", speedup=2.0, score=1.0)) == 0.01
    assert headroom(ProblemFacts(problem="s/p", speedup=2.0)) is None


def test_the_expected_gain_follows_recent_gains_headroom_and_cost() -> None:
    base = ProblemFacts(problem="s/p", evaluations=40, speedup=1.5, score=0.7, half_gain=0.1, cost_s=400)

    def expected(**change: float) -> float:
        return expected_gains([base.model_copy(update=change), base.model_copy(update={"problem": "s/q"})])["s/p"]

    assert expected(half_gain=0.3) > expected() > expected(half_gain=0.0) > 0
    assert expected(score=0.62) > expected() > expected(score=0.95)
    assert expected(cost_s=40_000) < expected()
    assert expected(half_gain=0.0, evaluations=400, cost_s=4000) < expected(half_gain=0.0)
    assert expected(speedup=0.4, score=0.35) < expected(), "below the baseline a gain is not a speed-up yet"


def test_a_problem_without_a_record_gets_the_rate_of_its_family() -> None:
    rich = [ProblemFacts(problem=f"rich/{n}", evaluations=100, speedup=2.0, score=0.7, half_gain=0.4) for n in range(5)]
    poor = [ProblemFacts(problem=f"poor/{n}", evaluations=100, speedup=1.1, score=0.55) for n in range(5)]
    new = [ProblemFacts(problem=f"{family}/new", evaluations=4, speedup=1.0, score=0.5) for family in ("rich", "poor")]
    expected = expected_gains([*rich, *poor, *new])
    assert expected["rich/new"] > 2 * expected["poor/new"]
    assert expected["rich/0"] > expected["poor/new"] > expected["poor/0"], "few trials are worth more than many"


@given(inputs())
def test_expected_gains_are_numbers_above_zero(given_inputs: PolicyInputs) -> None:
    expected = expected_gains(given_inputs.problems)
    assert set(expected) == {facts.problem for facts in given_inputs.problems}
    assert all(math.isfinite(gain) and gain > 0 for gain in expected.values())


@given(inputs())
def test_round_robin_obeys_people_and_keeps_workers_apart(given_inputs: PolicyInputs) -> None:
    """No worker is idle while a problem is open, and no problem is shared while another one is free."""
    rows = tuple(row for row in given_inputs.assignments if row.worker in WORKERS or row.state == "paused")
    policy_inputs = given_inputs.model_copy(update={"assignments": rows})
    decision = round_robin(policy_inputs)
    fixed = [row for row in rows if row.state != "active"]
    assert list(decision.assignments[: len(fixed)]) == fixed
    busy = [row for row in decision.assignments if row.state != "paused"]
    paused = {row.problem for row in fixed if row.state == "paused"}
    unfinished = policy_inputs.model_copy(
        update={
            "assignments": (),
            "workers": tuple(w.model_copy(update={"finished": {}}) for w in policy_inputs.workers),
        }
    )
    worker_counts = Counter(row.problem for row in round_robin(unfinished).assignments)
    assert not worker_counts or max(worker_counts.values()) <= -(
        -len(policy_inputs.workers) // max(1, len(policy_inputs.problems))
    )
    assert not paused & {row.problem for row in busy if row.state == "active"}


def test_round_robin_does_not_send_a_worker_to_where_another_stays() -> None:
    """The slice of the first worker, by name, is over; a worker stays on the least tried problem."""
    problems = tuple(ProblemFacts(problem=name, evaluations=n) for name, n in zip(NAMES[:3], (9, 2, 5), strict=True))
    rows = (Assignment(worker="w01", problem=NAMES[0]), Assignment(worker="w02", problem=NAMES[1]))
    workers = (WorkerFacts(worker="w01", stint=4), WorkerFacts(worker="w02", stint=1))
    decision = round_robin(PolicyInputs(problems=problems, workers=workers, assignments=rows, policy=POLICY))
    assert [row.problem for row in decision.assignments] == [NAMES[2], NAMES[1]]
