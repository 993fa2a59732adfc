"""Calls on a CUDA device, of trusted and of untrusted code.

`SynchronousCalls`: call, then wait for the device. The reading of the runner's own clock is recorded, but decides
nothing.
`EventTimedCalls`: trusted code (a problem's reference or its baseline) with device events around each call. The trusted
launcher places events around a sealed call in the same way, so that both sides of a ratio use the same clock.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from .launcher import TrustedKernels

_HOLD_NS = 5_000_000
"""Longest time that the queue is held for the launches of one call. Code that waits for the device waits this long."""
_TRIES = 3
"""Calls in a row that exceed the hold before later calls are made without it. A single one is a delay of the host, and
is repeated."""


class Calls(Protocol):
    """The calls of one workload."""

    def run(self, placement: int) -> int:
        """Make one call, wait until the device has finished, and return the nanoseconds that it took."""


class SynchronousCalls:
    """Calls of untrusted code, or of trusted code that the judge's clock times."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call

    def run(self, placement: int) -> int:
        """See `Calls`; nanoseconds by this process' clock."""
        begin = time.perf_counter_ns()
        self._call(placement)
        torch.cuda.synchronize()
        return time.perf_counter_ns() - begin


class EventTimedCalls:
    """Calls of trusted Python code, timed by device events; the copy of returned values is not part of the time."""

    def __init__(
        self, trusted: TrustedKernels, split_call: tuple[Callable[[int], Any], Callable[[Any, int], None]]
    ) -> None:
        self._trusted = trusted
        self._compute, self._deliver = split_call
        self._uses_hold = True

    def run(self, placement: int) -> int:
        """See `Calls`; the reading of the events, from which nothing is subtracted."""
        start, stop = self._timed_call(placement)
        torch.cuda.synchronize()
        return int(start.elapsed_time(stop) * 1e6)

    def _timed_call(self, slot: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Repeat a call whose hold ended before its last launch: the device waited for the host between the events."""
        self._trusted.reset_persisting_lines()
        for _ in range(_TRIES if self._uses_hold else 0):
            begin = time.perf_counter_ns()
            events, enqueue = self._call(slot)
            self._trusted.displace.run()
            self._trusted.enqueue_held(enqueue, _HOLD_NS)
            if time.perf_counter_ns() - begin < _HOLD_NS:
                return events
        self._uses_hold = False
        events, enqueue = self._call(slot)
        self._trusted.displace.run()
        enqueue()
        return events

    def _call(self, slot: int) -> tuple[tuple[torch.cuda.Event, torch.cuda.Event], Callable[[], None]]:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

        def enqueue() -> None:
            start.record()
            returned = self._compute(slot)
            stop.record()
            self._deliver(returned, slot)

        return (start, stop), enqueue


@functools.cache
def load_trusted(path: str) -> TrustedKernels:
    """Return the trusted kernels of a cubin that the judge compiled; the same object for the whole process."""
    torch.zeros(1, device="cuda")
    return TrustedKernels(Path(path).read_bytes())
