"""The queue of candidates: fair between workers, confirmations and former champions first, nothing twice. Pure.

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
    """What names a measurement: the same key is never measured twice unless asked (a confirmation is)."""

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
    """Kind `confirmation`: the `seq` of the evaluation it confirms."""
    again: bool = False
    """Kind `evaluation`: of a champion or runner-up of an older judge protocol, which goes before other evaluations."""


def _anything(job: Job) -> bool:
    del job
    return True


class EvaluationQueue:
    """Waiting jobs in one lane per worker, taken in turn; and the jobs in flight.

    Args:
        confirmations_first: due confirmations and former champions go before the evaluations of every worker.
        clock: gives the present time in seconds.
    """

    def __init__(self, *, confirmations_first: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._confirmations_first, self._clock = confirmations_first, clock
        self._lanes: OrderedDict[str, deque[Job]] = OrderedDict()
        self._known: dict[tuple[JobKind, Key], float] = {}
        """Jobs that wait or are in flight -> when they were added."""
        self._in_flight: dict[tuple[JobKind, Key], Job] = {}

    def add(self, job: Job) -> bool:
        """Put a job at the end of its worker's lane; False when the same job waits or is in flight already."""
        identity = (job.kind, job.key)
        if identity in self._known:
            return False
        self._known[identity] = self._clock()
        self._lanes.setdefault(job.worker, deque()).append(job)
        return True

    def take(self, target: str, allowed: Callable[[Job], bool] = _anything) -> Job | None:
        """The next job for a judge of `target`, now in flight; None when nothing that is allowed waits.

        The worker whose job is taken goes to the end of the turn.
        """

        def fits(job: Job) -> bool:
            return job.key.target == target and allowed(job)

        if self._confirmations_first:
            job = self._first(lambda job: job.kind == "confirmation" and fits(job))
            job = job or self._first(lambda job: job.again and fits(job)) or self._first(fits)
        else:
            job = self._first(fits)
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
        """Seconds since a job was added."""
        return self._clock() - self._known[job.kind, job.key]

    def put_back(self, job: Job) -> None:
        """Return a job in flight to the head of its lane, and its worker to the head of the turn."""
        del self._in_flight[job.kind, job.key]
        self._lanes.setdefault(job.worker, deque()).appendleft(job)
        self._lanes.move_to_end(job.worker, last=False)

    def put_last(self, job: Job) -> None:
        """Return a job in flight to the end of its lane, and its worker to the end of the turn."""
        del self._in_flight[job.kind, job.key]
        self._lanes.setdefault(job.worker, deque()).append(job)
        self._lanes.move_to_end(job.worker)

    def finish(self, job: Job) -> None:
        """The job in flight is over: its outcome is in the ledger, or it need not be judged any more."""
        del self._in_flight[job.kind, job.key]
        self._known.pop((job.kind, job.key), None)

    def drop(self, condition: Callable[[Job], bool]) -> int:
        """Forget waiting jobs (of a problem that has changed, say); returns how many."""
        dropped = [job for job in self.waiting() if condition(job)]
        for job in dropped:
            self._lanes[job.worker].remove(job)
            if not self._lanes[job.worker]:
                del self._lanes[job.worker]
            self._known.pop((job.kind, job.key), None)
        return len(dropped)

    def waiting(self, kind: JobKind | None = None) -> Iterator[Job]:
        """Jobs that wait, lane by lane."""
        for lane in list(self._lanes.values()):
            for job in list(lane):
                if kind is None or job.kind == kind:
                    yield job

    def in_flight(self, kind: JobKind | None = None) -> list[Job]:
        """Jobs taken and not finished."""
        return [job for job in self._in_flight.values() if kind is None or job.kind == kind]

    def __contains__(self, identity: tuple[JobKind, Key]) -> bool:
        return identity in self._known

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def _first(self, condition: Callable[[Job], bool]) -> Job | None:
        return next((job for job in self.waiting() if condition(job)), None)
