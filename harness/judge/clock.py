"""The judge's clock: what the way to a runner costs, and how many calls make a batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from harness.judge.devices.interface import Batch, Calibration

DISTURBED_SHARE = 0.01
"""Outside work that takes more than this share of a batch spoils its block."""
LAUNCH_BOUND = 3.0
"""A call shorter than so many dispatches measures the dispatch."""
_LEAST_SHARE = 0.01
"""Share of a reading that is left at least when the overhead of the clock is subtracted."""
_HANDSHAKES, _REPEATS = 41, 7


def now_ns() -> int:
    """CLOCK_MONOTONIC_RAW: no other clock's corrections bend it."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def handshake_ns(batch: Callable[[], Batch]) -> float:
    """Overhead of a batch in nanoseconds, from batches of trusted calls less their own reading of the clock.

    The lower quartile: whatever disturbs a handshake makes it longer, and to subtract too much would flatter.
    """
    for _ in range(3):
        batch()
    seen = [batch() for _ in range(_HANDSHAKES)]
    return statistics.quantiles((each.ns - each.claimed_ns for each in seen), n=4)[0]


def dispatch_ns(batch: Callable[[], Batch], calls: int) -> float:
    """Nanoseconds that a runner needs to make one call, from batches of calls that do nothing."""
    batch()
    return statistics.median(batch().claimed_ns for _ in range(_REPEATS)) / calls


def calls_for(call_ns: float, capacity: int, calibration: Calibration) -> int:
    """Calls of one batch for a side whose calls take so long, in memory's bounds."""
    return max(1, min(capacity, calibration.most_calls, round(calibration.batch_ns / max(1.0, call_ns))))


def per_call_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Nanoseconds a call, after one handshake is taken off, and never more than half of what was seen."""
    one = (batch.ns - min(calibration.handshake_ns, batch.ns / 2)) / calls
    return max(one - calibration.around_ns, one * _LEAST_SHARE)


def disturbed(batch: Batch) -> bool:
    """Return true if something outside took so much of a batch that its block is discarded; its duration has no say."""
    return batch.disturbed_ns > DISTURBED_SHARE * batch.ns
