"""The queue is fair, returns confirmations first, and holds each candidate once."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harness.daemon.queue import EvaluationQueue, Job, JobKind, Key


def job(worker: str, tree: str, *, kind: JobKind = "evaluation", target: str = "cpu", problem: str = "a/b") -> Job:
    key = Key(problem=problem, problem_digest="sha256:1", tree=tree, target=target, judge="sha256:j")
    return Job(kind=kind, key=key, commit=f"c{tree}", branch=f"agents/main/{worker}/{problem}", worker=worker)


def drain(queue: EvaluationQueue) -> list[Job]:
    drained = []
    while (next_job := queue.take("cpu")) is not None:
        drained.append(next_job)
    return drained


def test_workers_take_turns_however_much_one_of_them_submits() -> None:
    queue = EvaluationQueue()
    for number in range(4):
        queue.add(job("w01", f"a{number}"))
    queue.add(job("w02", "b0"))
    queue.add(job("w03", "c0"))
    queue.add(job("w03", "c1"))
    assert [candidate.key.tree for candidate in drain(queue)] == ["a0", "b0", "c0", "a1", "c1", "a2", "a3"]


def test_a_worker_that_submits_one_at_a_time_is_not_starved() -> None:
    queue = EvaluationQueue()
    for number in range(10):
        queue.add(job("w01", f"a{number}"))
    order = []
    for number in range(4):
        queue.add(job("w02", f"b{number}"))
        for _ in range(2):
            candidate = queue.take("cpu")
            assert candidate is not None
            order.append(candidate.worker)
    assert order == ["w01", "w02"] * 4


def test_a_job_that_is_put_last_comes_after_its_workers_others_and_after_other_workers() -> None:
    queue = EvaluationQueue()
    for number in range(2):
        queue.add(job("w01", f"a{number}"))
        queue.add(job("w02", f"b{number}"))
    first = queue.take("cpu")
    assert first is not None
    queue.put_back(first, last=True)
    assert not queue.add(first), "the queue still has its key"
    assert [candidate.key.tree for candidate in drain(queue)] == ["b0", "a1", "b1", "a0"]


def test_confirmations_precede_the_turns_of_workers() -> None:
    queue = EvaluationQueue()
    queue.add(job("w01", "a0"))
    queue.add(job("w02", "b0"))
    queue.add(job("w02", "b0", kind="confirmation"))
    assert [(candidate.kind, candidate.worker) for candidate in drain(queue)] == [
        ("confirmation", "w02"),
        ("evaluation", "w01"),
        ("evaluation", "w02"),
    ]


def test_the_same_key_is_queued_once_while_it_waits_and_while_it_is_judged() -> None:
    queue = EvaluationQueue()
    first = job("w01", "a0")
    assert queue.add(first)
    assert not queue.add(replace(first, worker="w02", branch="agents/main/w02/a/b"))
    candidate = queue.take("cpu")
    assert candidate == first
    assert not queue.add(first)
    queue.finish(first)
    assert queue.add(first)


def test_a_job_put_back_is_the_next_one_again() -> None:
    queue = EvaluationQueue()
    for worker, tree in (("w01", "a0"), ("w01", "a1"), ("w02", "b0")):
        queue.add(job(worker, tree))
    candidate = queue.take("cpu")
    assert candidate is not None
    queue.put_back(candidate)
    assert [candidate.key.tree for candidate in drain(queue)] == ["a0", "b0", "a1"]


def test_a_judge_gets_only_jobs_of_its_target_and_only_allowed_ones() -> None:
    queue = EvaluationQueue()
    queue.add(job("w01", "gpu", target="h200"))
    queue.add(job("w01", "blocked", problem="a/blocked"))
    queue.add(job("w02", "free"))
    taken_job = queue.take("cpu", lambda candidate: candidate.key.problem != "a/blocked")
    assert taken_job is not None
    assert taken_job.key.tree == "free"
    assert queue.take("b200") is None
    gpu = queue.take("h200")
    assert gpu is not None
    assert gpu.key.tree == "gpu"


def test_dropped_jobs_can_be_queued_again() -> None:
    queue = EvaluationQueue()
    queue.add(job("w01", "a0"))
    queue.add(job("w01", "a1", problem="a/c"))
    queue.drop(lambda waiting: waiting.key.problem == "a/b")
    assert [waiting.key.tree for waiting in queue.waiting()] == ["a1"]
    assert queue.add(job("w01", "a0"))
    assert len(queue) == 2


@given(st.lists(st.tuples(st.sampled_from(["w01", "w02", "w03"]), st.integers(0, 20)), max_size=60))
def test_nothing_is_lost_nothing_twice_and_no_worker_waits_two_rounds(arrivals: list[tuple[str, int]]) -> None:
    queue = EvaluationQueue()
    added = [job(worker, f"{worker}-{number}") for worker, number in arrivals]
    accepted = [candidate for candidate in added if queue.add(candidate)]
    drained = drain(queue)
    assert sorted(queued.key.tree for queued in drained) == sorted({queued.key.tree for queued in added})
    assert len(drained) == len(accepted)
    for worker in {queued.worker for queued in drained}:
        turns = [index for index, queued in enumerate(drained) if queued.worker == worker]
        assert all(later - earlier <= 3 for earlier, later in itertools.pairwise(turns))
    assert len(queue) == 0
    assert len(queue.in_flight()) == len(drained)
