"""Standard error of a speed-up due to the finite number of placements in memory.

The variance between blocks contains the differences between calls. It does not contain the choice of placements: all
calls of an evaluation use the same few, and another evaluation would draw others.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from harness.judge.devices.interface import Reading

_FEWEST_CALLS = 2.0
"""Smallest mean number of calls per placement at which the two variances can be separated."""


def placement_error(sides: Iterable[Sequence[Sequence[Reading]]]) -> float:
    """Return the standard error of the mean log ratio due to placements; 0.0 where it cannot be estimated.

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
