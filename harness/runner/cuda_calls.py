"""Calls on a CUDA device, as trusted and untrusted code makes them.

Bounded: call, then wait for the device; what the runner's own clock says is recorded and times nothing.
Timed: trusted code (a problem's reference or its baseline) with the device's events around each call, as the trusted
launcher has them around a sealed one: both sides of a ratio are on the same clock.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from .launcher import Trusted

_HOLD_NS = 5_000_000
"""So long the queue is held back for the launches of one call; code that waits for the device waits as long."""
_TRIES = 3
"""Calls in a row that outlast the hold before it is given up: one alone was the host's, and is made again."""


class Calls(Protocol):
    """The calls of one workload."""

    def run(self, placement: int) -> int:
        """Make one call and wait until the device has finished; nanoseconds by this process' clock."""


class Bounded:
    """Untrusted code, or trusted code on the judge's clock."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call

    def run(self, placement: int) -> int:
        """See `Calls`."""
        begin = time.perf_counter_ns()
        self._call(placement)
        torch.cuda.synchronize()
        return time.perf_counter_ns() - begin


class Timed:
    """Trusted Python code by the device's events: what is delivered after the call is no part of it."""

    def __init__(self, trusted: Trusted, halves: tuple[Callable[[int], Any], Callable[[Any, int], None]]) -> None:
        self._trusted = trusted
        self._compute, self._deliver = halves
        self._held = True

    def run(self, placement: int) -> int:
        """See `Calls`; the events' reading, nothing subtracted."""
        start, stop = self._one(placement)
        torch.cuda.synchronize()
        return int(start.elapsed_time(stop) * 1e6)

    def _one(self, slot: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """One call; the hold over before its last launch was there, the device waited for the host between events."""
        self._trusted.forget_persisting_lines()
        for _ in range(_TRIES if self._held else 0):
            begin = time.perf_counter_ns()
            events, enqueue = self._call(slot)
            self._trusted.held(enqueue, _HOLD_NS)
            if time.perf_counter_ns() - begin < _HOLD_NS:
                return events
        self._held = False
        events, enqueue = self._call(slot)
        enqueue()
        return events

    def _call(self, slot: int) -> tuple[tuple[torch.cuda.Event, torch.cuda.Event], Callable[[], None]]:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

        def enqueue() -> None:
            self._trusted.displace.run()
            start.record()
            returned = self._compute(slot)
            stop.record()
            self._deliver(returned, slot)

        return (start, stop), enqueue


@functools.cache
def load_trusted(path: str) -> Trusted:
    """The trusted kernels, compiled by the judge; the same object for the whole process."""
    torch.zeros(1, device="cuda")
    return Trusted(Path(path).read_bytes())
