"""Slowdown of a baseline next to a candidate, relative to its time before the candidate's process existed.

A stopped runner starts no work, but work that it queued on a device before the stop may run in the baseline's turn and
slow it (docs/clock.md, "Work left for the baseline's turn"). The speed-up is then too large. A host that became slow
has the same effect, so the baseline is timed again when the candidate's process has ended. The slowdown changes no
verdict. The interval is widened by the difference that remains, so that its lower end is the speed-up over the
undisturbed baseline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_NOISE_ERRORS = 3.0
"""Standard errors up to which a difference counts as noise."""
_LEAST = math.log(1.03)
"""Log ratio up to which a difference counts as noise."""


def slowed_by(alone_ns: Sequence[float], beside_ns: Sequence[float]) -> float:
    """Return ln(time next to the candidate / time alone) of a baseline; 0.0 within noise or with fewer than two times.

    Args:
        alone_ns: times per call before the candidate's process existed, in nanoseconds.
        beside_ns: times per call in the blocks that count, in nanoseconds.
    """
    if len(alone_ns) < 2 or len(beside_ns) < 2:
        return 0.0
    alone, beside = ([math.log(time_ns) for time_ns in times] for times in (alone_ns, beside_ns))
    difference = statistics.fmean(beside) - statistics.fmean(alone)
    error = math.hypot(*(statistics.stdev(logs) / math.sqrt(len(logs)) for logs in (alone, beside)))
    return difference if difference > max(_LEAST, _NOISE_ERRORS * error) else 0.0
