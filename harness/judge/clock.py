"""The judge's clock: what the way to a runner costs, and how many calls make a batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from harness.judge.devices.interface import Batch, Calibration

DISTURBED_SHARE = 0.01
"""Outside work that takes more than this share of a batch spoils its block."""
LAUNCH_BOUND = 3.0
"""A call shorter than so many dispatches measures the dispatch."""
_MOST_SUBTRACTED_SHARE, _MOST_SUBTRACTED_NS = 0.03, 3_000.0
"""Of a call whose number counts: no more of the handshake than the larger of these is subtracted, so that a wrong
calibration cannot make a number wrong by more."""
_ONE_CALL_HANDSHAKES = 1 / _MOST_SUBTRACTED_SHARE
"""A call that takes so many handshakes is a batch by itself: the handshake is then no more than may be subtracted."""
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
    if 0 < _ONE_CALL_HANDSHAKES * calibration.handshake_ns <= call_ns:
        return 1
    return max(1, min(capacity, calibration.most_calls, round(calibration.batch_ns / max(1.0, call_ns))))


def per_call_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Nanoseconds a call, after one handshake is taken off, and never more than half of what was seen."""
    one = (batch.ns - min(calibration.handshake_ns, batch.ns / 2)) / calls
    return max(one - calibration.call_overhead_ns, one * _LEAST_SHARE)


def subtracted_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Part of the handshake that is subtracted from each call of a batch whose number counts, in nanoseconds."""
    return min(calibration.handshake_ns / calls, max(_MOST_SUBTRACTED_NS, _MOST_SUBTRACTED_SHARE * batch.ns / calls))


def counted_call_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Nanoseconds a call, for a number that counts."""
    return per_call_ns(
        batch, calls, replace(calibration, handshake_ns=calls * subtracted_ns(batch, calls, calibration))
    )


def disturbed(batch: Batch) -> bool:
    """Return true if something outside took so much of a batch that its block is discarded; its duration has no say."""
    return batch.disturbed_ns > DISTURBED_SHARE * batch.ns
