"""The policy: what a decision always holds to, and what it does in the cases that matter."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from harness.model.assignment import Assignment
from harness.model.config import PolicyConfig
from harness.planner.policy import Decision, PolicyInputs, ProblemFacts, WorkerFacts, decide, value

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
    kept = [row for row in given_inputs.assignments if row.state != "active"]
    assert list(decision.assignments[: len(kept)]) == kept
    paused = {row.problem for row in kept if row.state == "paused"}
    pinned = {row.worker for row in kept if row.state == "pinned"}
    known = {facts.problem for facts in given_inputs.problems}
    workers = {facts.worker: facts for facts in given_inputs.workers}
    new = decision.assignments[len(kept) :]
    assert len({row.worker for row in new}) == len(new)
    for row in new:
        assert row.state == "active"
        assert row.worker in workers
        assert row.worker not in pinned
        assert row.problem in known - paused
        assert workers[row.worker].finished.get(row.problem) != "exhausted"
    for name, about in workers.items():
        assert decision.reasons[name]
        open_to_it = known - paused - set(about.finished)
        if open_to_it and name not in pinned:
            assert name in {row.worker for row in new}, "a worker is idle although a problem is open to it"


@given(inputs())
def test_a_decision_is_deterministic_and_survives_being_recorded(given_inputs: PolicyInputs) -> None:
    decision = decide(given_inputs)
    again = PolicyInputs.model_validate_json(given_inputs.model_dump_json())
    assert decide(again) == decision
    assert Decision.model_validate_json(decision.model_dump_json()) == decision


@given(inputs())
def test_workers_share_a_problem_only_when_nothing_better_is_free(given_inputs: PolicyInputs) -> None:
    fresh = given_inputs.model_copy(
        update={
            "assignments": (),
            "workers": tuple(w.model_copy(update={"finished": {}}) for w in given_inputs.workers),
        }
    )
    crowd = Counter(row.problem for row in decide(fresh).assignments)
    if len(fresh.workers) <= len(fresh.problems):
        assert max(crowd.values(), default=0) <= 1
    elif crowd:
        assert max(crowd.values()) - min(crowd.values()) <= 1
        assert len(crowd) == len(fresh.problems)


def simulate(problems: int, workers: int, evaluations: int, policy: PolicyConfig = POLICY) -> list[tuple[str, str]]:
    """Let workers evaluate in turn where the policy puts them; gains never come. Returns (worker, problem) in order."""
    state = {name: ProblemFacts(problem=name) for name in NAMES[:problems]}
    stints = {name: WorkerFacts(worker=name) for name in WORKERS[:workers]}
    rows: tuple[Assignment, ...] = ()
    trace: list[tuple[str, str]] = []
    while len(trace) < evaluations:
        for name in WORKERS[:workers]:
            decided = decide(
                PolicyInputs(
                    problems=tuple(state.values()), workers=tuple(stints.values()), assignments=rows, policy=policy
                )
            )
            before = {row.worker: row.problem for row in rows}
            rows = decided.assignments
            for row in rows:
                if before.get(row.worker) != row.problem:
                    stints[row.worker] = WorkerFacts(worker=row.worker)
            here = next(row.problem for row in rows if row.worker == name)
            trace.append((name, here))
            stints[name] = WorkerFacts(worker=name, stint=stints[name].stint + 1)
            for problem, one in state.items():
                change: dict[str, int | float] = (
                    {
                        "evaluations": one.evaluations + 1,
                        "since_gain": one.since_gain + 1,
                        "cost_s": one.cost_s + 1,
                        "elsewhere": 0,
                    }
                    if problem == here
                    else {"elsewhere": one.elsewhere + 1}
                )
                state[problem] = one.model_copy(update=change)
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
    stays = [problem for problem, before in zip(trace, [None, *trace], strict=False) if problem != before]
    assert set(trace) == set(NAMES[:2])
    assert len(stays) > 4, "a worker comes back to problems it left"
    assert max(Counter(trace).values()) <= 120, "neither problem starves the other"


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
    rests = decide(
        PolicyInputs(
            problems=problems,
            workers=(WorkerFacts(worker="w01", finished={NAMES[0]: "exhausted", NAMES[1]: "stale"}),),
            assignments=rows,
        )
    )
    assert rests.assignments == ()
    assert "nothing left" in rests.reasons["w01"]


def test_a_stale_finish_lapses_after_enough_evaluations_elsewhere() -> None:
    def with_elsewhere(count: int) -> tuple[Assignment, ...]:
        problem = ProblemFacts(problem=NAMES[0], evaluations=30, since_gain=25, elsewhere=count)
        one = WorkerFacts(worker="w01", finished={NAMES[0]: "stale"})
        return decide(PolicyInputs(problems=(problem,), workers=(one,), policy=POLICY)).assignments

    assert with_elsewhere(59) == ()
    assert [row.problem for row in with_elsewhere(60)] == [NAMES[0]]


def test_value_prefers_headroom_slope_and_cheapness_and_fades_without_gain() -> None:
    base = ProblemFacts(problem="s/p", evaluations=10, speedup=1.5, score=0.5, cost_s=10)

    def worth(**change: float) -> float:
        return value(base.model_copy(update=change), POLICY, 1.0)

    assert worth(score=0.2) > worth() > worth(score=0.9)
    assert worth(recent_gain=0.3) > worth()
    assert worth(since_gain=15) < worth()
    assert worth(cost_s=40) < worth()
    assert worth(failures=8) < worth()
    assert worth(duplicates=10) < worth()


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

    assert one_move(0.58) == NAMES[0]
    assert one_move(0.2) == NAMES[1]
