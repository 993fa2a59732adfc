"""The judge's clock: overhead of a batch, calls per batch, the time per call after the overhead, and its error."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from harness.judge.devices.interface import Batch, Calibration, Reading

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
_FEWEST_CALLS = 2.0
"""Smallest mean number of calls per placement at which the two variances can be separated."""


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
    limited_ns = calls * subtracted_ns(batch, calls, calibration)
    return per_call_ns(batch, calls, replace(calibration, handshake_ns=limited_ns))


def disturbed(batch: Batch) -> bool:
    """Return true if other processes took so much of a batch that its block is discarded.

    The duration of the batch does not enter this decision.
    """
    return batch.disturbed_ns > DISTURBED_SHARE * batch.ns


def placement_error(sides: Iterable[Sequence[Sequence[Reading]]]) -> float:
    """Return the standard error of the mean log ratio due to placements; 0.0 where it cannot be estimated.

    The variance between blocks contains the differences between calls. It does not contain the choice of placements in
    memory: all calls of an evaluation use the same few, and another evaluation would draw others.

    Args:
        sides: readings of each batch, for the baseline and for the candidate.
    """
    return math.sqrt(math.fsum(placement_variance(batches) for batches in sides))


def placement_variance(batches: Sequence[Sequence[Reading]]) -> float:
    """Return the variance of the log duration between placements, divided by their number.

    This is the analysis-of-variance estimator of the one-way random model (Searle, Casella and McCulloch, "Variance
    Components", 1992, section 3.6), applied to deviations from the mean of each batch, which removes slow changes of
    the machine. These deviations are smaller than those from the true mean; the factor k / (k - 1) for batches of k
    calls corrects that.
    """
    batches = [batch for batch in batches if len(batch) > 1]
    groups: dict[int, list[float]] = defaultdict(list)
    for batch in batches:
        logs = [math.log(max(1, reading.ns)) for reading in batch]
        mean = statistics.fmean(logs)
        for reading, value in zip(batch, logs, strict=True):
            groups[reading.placement].append(value - mean)
    total, count = sum(map(len, groups.values())), len(groups)
    if count < 2 or total < _FEWEST_CALLS * count:
        return 0.0
    means = {placement: statistics.fmean(values) for placement, values in groups.items()}
    grand_mean = math.fsum(map(math.fsum, groups.values())) / total
    between = math.fsum(len(values) * (means[p] - grand_mean) ** 2 for p, values in groups.items()) / (count - 1)
    within = math.fsum((value - means[p]) ** 2 for p, values in groups.items() for value in values) / (total - count)
    calls = (total - math.fsum(len(values) ** 2 for values in groups.values()) / total) / (count - 1)
    batch_calls = total / len(batches)
    return max(0.0, (between - within) / calls) * batch_calls / (batch_calls - 1) / count
