"""The judge's clock: overhead of a batch, calls per batch, and the time per call after the overhead."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from harness.judge.devices.interface import Batch, Calibration

DISTURBED_SHARE = 0.01
"""A block is discarded if other processes took more than this share of a batch."""
LAUNCH_BOUND = 3.0
"""Number of dispatches. The time of a shorter call is mostly the dispatch."""
_MOST_SUBTRACTED_SHARE, _MOST_SUBTRACTED_NS = 0.03, 3_000.0
"""Limits on the part of the handshake that is subtracted from a call whose time counts: the larger of this share of the
call and these nanoseconds. A wrong calibration therefore changes the time by no more than that."""
_ONE_CALL_HANDSHAKES = 1 / _MOST_SUBTRACTED_SHARE
"""A call that takes at least so many handshakes forms a batch alone, because the whole handshake may be subtracted."""
_LEAST_SHARE = 0.01
"""Smallest share of a reading that remains when the overhead of the clock is subtracted."""
_HANDSHAKES, _REPEATS = 41, 7
"""Batches that are measured for the handshake, and for the dispatch."""


def now_ns() -> int:
    """Return CLOCK_MONOTONIC_RAW in nanoseconds, which no adjustment of the system clock affects."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def handshake_ns(batch: Callable[[], Batch]) -> float:
    """Return the overhead of a batch in nanoseconds: the judge's reading less the runner's own, of trusted calls.

    The result is the lower quartile: a disturbance only makes a handshake longer, and subtracting too much would make
    candidates look faster than they are.
    """
    for _ in range(3):
        batch()
    batches = [batch() for _ in range(_HANDSHAKES)]
    return statistics.quantiles((measured.ns - measured.claimed_ns for measured in batches), n=4)[0]


def dispatch_ns(batch: Callable[[], Batch], calls: int) -> float:
    """Return the nanoseconds that a runner needs to make one call.

    Args:
        batch: runs one batch of calls that do nothing.
        calls: calls per batch.
    """
    batch()
    return statistics.median(batch().claimed_ns for _ in range(_REPEATS)) / calls


def calls_for(call_ns: float, capacity: int, calibration: Calibration) -> int:
    """Return the number of calls for one batch.

    Args:
        call_ns: time per call in nanoseconds.
        capacity: number of sets of inputs that memory has room for.
        calibration: of the device's clock.
    """
    if 0 < _ONE_CALL_HANDSHAKES * calibration.handshake_ns <= call_ns:
        return 1
    return max(1, min(capacity, calibration.most_calls, round(calibration.batch_ns / max(1.0, call_ns))))


def per_call_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Return the nanoseconds per call, after one handshake is subtracted, but at most half of the reading.

    Args:
        batch: the judge's reading.
        calls: calls in the batch.
        calibration: of the device's clock.
    """
    call_ns = (batch.ns - min(calibration.handshake_ns, batch.ns / 2)) / calls
    return max(call_ns - calibration.call_overhead_ns, call_ns * _LEAST_SHARE)


def subtracted_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Return the part of the handshake that is subtracted from each call whose time counts, in nanoseconds.

    Args:
        batch: the judge's reading.
        calls: calls in the batch.
        calibration: of the device's clock.
    """
    return min(calibration.handshake_ns / calls, max(_MOST_SUBTRACTED_NS, _MOST_SUBTRACTED_SHARE * batch.ns / calls))


def counted_call_ns(batch: Batch, calls: int, calibration: Calibration) -> float:
    """Return the nanoseconds per call of a batch whose time counts, with limits on what is subtracted.

    Args:
        batch: the judge's reading.
        calls: calls in the batch.
        calibration: of the device's clock.
    """
    return per_call_ns(
        batch, calls, replace(calibration, handshake_ns=calls * subtracted_ns(batch, calls, calibration))
    )


def disturbed(batch: Batch) -> bool:
    """Return true if other processes took so much of a batch that its block is discarded.

    The duration of the batch does not enter this decision.
    """
    return batch.disturbed_ns > DISTURBED_SHARE * batch.ns
