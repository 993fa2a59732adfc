"""Seconds of a request by stage: `recording` starts the clock, and `timed_as` names the stage of the work inside it.

Stages are exclusive: the time of an inner stage is not part of the outer one. Time without a stage is `other`. Outside
of a recording, and in other threads, `timed_as` has no effect.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch

from harness.model.judging import Cost, JudgeStage

SecondsClock = Callable[[], float]
"""Returns seconds since any fixed time."""
T = TypeVar("T")
_ASYNCHRONOUS = frozenset({JudgeStage.FILL, JudgeStage.REFERENCE})
"""Stages that leave work in a GPU's queue. The next stage would wait for it, so these wait themselves."""


class StageTimes:
    """Exclusive seconds of one thread by stage.

    Args:
        clock: the clock.
        outside: the stage while no other one is open.
    """

    def __init__(self, clock: SecondsClock = time.monotonic, outside: JudgeStage = JudgeStage.OTHER) -> None:
        self.clock, self.stage = clock, outside
        self.seconds: defaultdict[JudgeStage, float] = defaultdict(float)
        self._since = clock()

    def enter(self, stage: JudgeStage) -> JudgeStage:
        """Count the time from now on as this stage, and return the former one."""
        self.count()
        former, self.stage = self.stage, stage
        return former

    def count(self) -> None:
        """Add the time since the last count to the present stage."""
        until = self.clock()
        self.seconds[self.stage] += until - self._since
        self._since = until

    def skip(self) -> None:
        """Do not count the time since the last count."""
        self._since = self.clock()

    def divide(self, shares: Mapping[JudgeStage, float]) -> None:
        """Divide the time since the last count among stages, in proportion to their shares.

        Args:
            shares: seconds that other threads spent by stage; without any, the present stage gets all.
        """
        until, total = self.clock(), sum(shares.values())
        if total <= 0.0:
            self.count()
            return
        for stage, seconds in shares.items():
            self.seconds[stage] += (until - self._since) * seconds / total
        self._since = until

    def cost(self, build_s: float) -> Cost:
        """Return the cost of the request.

        Args:
            build_s: seconds of building the candidate; the rest is judging.
        """
        rounded = {stage: round(self.seconds[stage], 3) for stage in JudgeStage}
        return Cost(
            build_s=round(build_s, 3),
            judge_s=round(max(0.0, sum(self.seconds.values()) - build_s), 3),
            stages={stage: seconds for stage, seconds in rounded.items() if seconds > 0.0},
        )


class _OfThread(threading.local):
    times: StageTimes | None = None
    """Receives the seconds of this thread's work; None outside of a recording."""


_of_thread = _OfThread()


@contextlib.contextmanager
def _counting(times: StageTimes | None) -> Iterator[None]:
    """Count this thread's work inside this context in `times`."""
    former, _of_thread.times = _of_thread.times, times
    try:
        yield
    finally:
        _of_thread.times = former
        if times is not None:
            times.count()


@contextlib.contextmanager
def recording(clock: SecondsClock = time.monotonic) -> Iterator[StageTimes]:
    """Record the stages of this thread's work inside this context; they are complete after it.

    Args:
        clock: the clock.
    """
    times = StageTimes(clock)
    with _counting(times):
        yield times


@contextlib.contextmanager
def timed_as(stage: JudgeStage) -> Iterator[None]:
    """Count the work inside this context, or of the decorated function, as a stage.

    Args:
        stage: the stage; inside itself it has no effect.
    """
    times = _of_thread.times
    if times is None or times.stage is stage:
        yield
        return
    former = times.enter(stage)
    try:
        yield
        if stage in _ASYNCHRONOUS and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    finally:
        times.enter(former)


@contextlib.contextmanager
def not_recorded() -> Iterator[None]:
    """Leave the work inside this context, or of the decorated function, out of the recording."""
    times = _of_thread.times
    if times is None:
        yield
        return
    times.count()
    _of_thread.times = None
    try:
        yield
    finally:
        _of_thread.times = times
        times.skip()


@contextlib.contextmanager
def divided_among_threads() -> Iterator[Callable[[Callable[[int], T]], Callable[[int], T]]]:
    """Divide the time inside this context, in which this thread waits, among the stages of other threads' work.

    Yields:
        A function that returns the work that the other threads call instead of the given one. All calls have ended when
        the context ends.
    """
    times = _of_thread.times
    if times is None:
        yield lambda work: work
        return
    times.count()
    shares: defaultdict[JudgeStage, float] = defaultdict(float)
    lock = threading.Lock()

    def counted(work: Callable[[int], T]) -> Callable[[int], T]:
        def call(number: int) -> T:
            of_call = StageTimes(times.clock, outside=times.stage)
            try:
                with _counting(of_call):
                    return work(number)
            finally:
                with lock:
                    for stage, seconds in of_call.seconds.items():
                        shares[stage] += seconds

        return call

    try:
        yield counted
    finally:
        times.divide(shares)
