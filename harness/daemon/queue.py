"""The queue of candidates: fair between workers, confirmations and former champions first, without duplicates. Pure.

The queue can be lost at any time: it is derived again from git and the ledger (`harness.daemon.due_work`).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

JobKind = Literal["evaluation", "confirmation"]


@dataclass(frozen=True)
class Key:
    """Identity of a measurement: the same key is never measured twice, except for a confirmation."""

    problem: str
    problem_digest: str
    tree: str
    target: str
    judge: str
    """The judge version."""


@dataclass(frozen=True)
class Job:
    """One candidate to be judged."""

    kind: JobKind
    key: Key
    commit: str
    branch: str
    worker: str
    cites: int | None = None
    """Kind `confirmation`: the `seq` of the evaluation that it confirms."""
    is_repeat: bool = False
    """Kind `evaluation`: True for a champion or runner-up of an older judge protocol, which goes first."""


class EvaluationQueue:
    """Waiting jobs in one lane per worker, taken in turn; and the jobs in flight.

    Due confirmations and former champions precede the evaluations of every worker.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[Job]] = OrderedDict()
        self._added_at: dict[tuple[JobKind, Key], float] = {}
        """Jobs that wait or are in flight -> when they were added."""
        self._in_flight: dict[tuple[JobKind, Key], Job] = {}

    def add(self, job: Job) -> bool:
        """Put a job at the end of its worker's lane; return False if the same job already waits or is in flight."""
        identity = (job.kind, job.key)
        if identity in self._added_at:
            return False
        self._added_at[identity] = time.monotonic()
        self._lanes.setdefault(job.worker, deque()).append(job)
        return True

    def take(self, target: str, allowed: Callable[[Job], bool] = lambda _: True) -> Job | None:
        """Return the next job for a judge of `target`, which is then in flight; None if no allowed job waits.

        The worker whose job is taken goes to the end of the turn.

        Args:
            allowed: returns whether a job may be taken.
        """
        in_order = sorted(self.waiting(), key=lambda job: (job.kind != "confirmation", not job.is_repeat))
        job = next((job for job in in_order if job.key.target == target and allowed(job)), None)
        if job is None:
            return None
        lane = self._lanes[job.worker]
        lane.remove(job)
        if lane:
            self._lanes.move_to_end(job.worker)
        else:
            del self._lanes[job.worker]
        self._in_flight[job.kind, job.key] = job
        return job

    def waited_s(self, job: Job) -> float:
        """Return the seconds since a job was added."""
        return time.monotonic() - self._added_at[job.kind, job.key]

    def put_back(self, job: Job, *, last: bool = False) -> None:
        """Return a job in flight to the head of its lane, and its worker to the head of the turn.

        Args:
            last: return both to the end instead.
        """
        del self._in_flight[job.kind, job.key]
        lane = self._lanes.setdefault(job.worker, deque())
        (lane.append if last else lane.appendleft)(job)
        self._lanes.move_to_end(job.worker, last=last)

    def finish(self, job: Job) -> None:
        """Remove a job in flight: its outcome is in the ledger, or it no longer needs a judgement."""
        del self._in_flight[job.kind, job.key]
        self._added_at.pop((job.kind, job.key), None)

    def drop(self, condition: Callable[[Job], bool]) -> None:
        """Remove waiting jobs (of a problem that has changed, for example)."""
        for job in [job for job in self.waiting() if condition(job)]:
            self._lanes[job.worker].remove(job)
            if not self._lanes[job.worker]:
                del self._lanes[job.worker]
            self._added_at.pop((job.kind, job.key), None)

    def waiting(self, kind: JobKind | None = None) -> Iterator[Job]:
        """Yield the jobs that wait, lane by lane."""
        for lane in list(self._lanes.values()):
            for job in list(lane):
                if kind is None or job.kind == kind:
                    yield job

    def in_flight(self, kind: JobKind | None = None) -> list[Job]:
        """Return the jobs that were taken and are not finished."""
        return [job for job in self._in_flight.values() if kind is None or job.kind == kind]

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())
