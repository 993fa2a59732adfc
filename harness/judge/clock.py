"""The judge's clock: what the way to a runner costs, and how many calls make a batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from harness.judge.devices import Batch, Calibration

BATCH_NS = 6_000_000
"""A batch lasts about so long: the handshake (about 0.13 ms) is then 2 % of it."""
MOST_CALLS = 32
"""Calls of one batch at most: filling and checking more sets would cost judging time and buy little."""
DISTURBED_SHARE = 0.01
"""Outside work that takes more than this share of a batch spoils its block."""
LAUNCH_BOUND = 3.0
"""A call shorter than so many dispatches measures the dispatch."""
_HANDSHAKES, _REPEATS = 41, 7


def now_ns() -> int:
    """CLOCK_MONOTONIC_RAW: no other clock's corrections bend it."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def handshake_ns(batch: Callable[[], Batch]) -> float:
    """What a batch costs beyond its calls, from batches of trusted calls whose own reading of the clock is taken off.

    The lower quartile: whatever disturbs a handshake makes it longer, and to subtract too much would flatter.
    """
    for _ in range(3):
        batch()
    seen = [batch() for _ in range(_HANDSHAKES)]
    return statistics.quantiles((each.ns - each.claimed_ns for each in seen), n=4)[0]


def dispatch_ns(batch: Callable[[], Batch], calls: int) -> float:
    """What a runner needs to make one call, from batches of calls that do nothing."""
    batch()
    return statistics.median(batch().claimed_ns for _ in range(_REPEATS)) / calls


def calls_for(call_ns: float, capacity: int) -> int:
    """Calls of one batch for a side whose calls take so long, in memory's bounds."""
    return max(1, min(capacity, MOST_CALLS, round(BATCH_NS / max(1.0, call_ns))))


def per_call_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Nanoseconds a call, after one handshake is taken off, and never more than half of what was seen."""
    return (batch.ns - min(calibration.handshake_ns, batch.ns / 2)) / calls


def disturbed(batch: Batch) -> bool:
    """Whether something outside took so much of the batch that its block must go. Says nothing of how long it took."""
    return batch.disturbed_ns > DISTURBED_SHARE * batch.ns
