"""Slowdown of a baseline beside a candidate, against its own time before the candidate's process existed.

A stopped runner starts nothing, but work that it queued on a device before may run in the baseline's turn and slow it
(docs/clock.md, "Work left for the baseline's turn"). A speed-up is then too large. A host that became slow looks alike,
so the baseline is timed once more when the candidate's process has ended. No verdict follows from it: the interval is
widened by the difference that remains, so that its lower end is what the undisturbed baseline would have given.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_NOISE_ERRORS = 3.0
"""A difference of so many standard errors is more than noise."""
_LEAST = math.log(1.03)


def slowed_by(alone_ns: Sequence[float], beside_ns: Sequence[float]) -> float:
    """Log ratio by which a baseline was slower beside a candidate than alone; 0.0 within noise or where one is unknown.

    Args:
        alone_ns: times per call before the candidate's process existed.
        beside_ns: times per call in the blocks that count.
    """
    if len(alone_ns) < 2 or len(beside_ns) < 2:
        return 0.0
    alone, beside = ([math.log(time_ns) for time_ns in times] for times in (alone_ns, beside_ns))
    difference = statistics.fmean(beside) - statistics.fmean(alone)
    error = math.hypot(*(statistics.stdev(logs) / math.sqrt(len(logs)) for logs in (alone, beside)))
    return difference if difference > max(_LEAST, _NOISE_ERRORS * error) else 0.0
