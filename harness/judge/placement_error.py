"""Error of a speed-up that comes from the finite number of placements in memory.

The blocks' variance contains what differs from call to call. It does not contain that all calls of an evaluation use
the same few placements, which another evaluation would draw again.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from harness.judge.devices.interface import Reading

_FEWEST_CALLS = 2.0
"""Calls per placement, on average, from which on the placements' variance can be told from the calls'."""


def placement_error(sides: Iterable[Sequence[Sequence[Reading]]]) -> float:
    """Standard error of the mean log ratio that comes from the number of placements; 0.0 where it cannot be told.

    Args:
        sides: for baseline and candidate, the readings of each batch.
    """
    return math.sqrt(math.fsum(placement_variance(batches) for batches in sides))


def placement_variance(batches: Sequence[Sequence[Reading]]) -> float:
    """Variance between placements of the log duration, divided by their number.

    The analysis-of-variance estimator of the one-way random model (Searle, Casella and McCulloch, "Variance
    Components", 1992, section 3.6), on deviations from the mean of each batch, which takes out slow changes of the
    machine. These deviations are smaller than those from the true mean; the factor k / (k - 1) for batches of k calls
    corrects that.
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
    grand = math.fsum(map(math.fsum, groups.values())) / total
    between = math.fsum(len(values) * (means[p] - grand) ** 2 for p, values in groups.items()) / (count - 1)
    within = math.fsum((value - means[p]) ** 2 for p, values in groups.items() for value in values) / (total - count)
    calls = (total - math.fsum(len(values) ** 2 for values in groups.values()) / total) / (count - 1)
    size = total / len(batches)
    return max(0.0, (between - within) / calls) * size / (size - 1) / count
