"""Statistics of calls on a CUDA device: which calls count, their mean, and what differs between processes."""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Sequence

_HELD_SHARE = 4
"""One call in so many is held."""
_PROCESS_NS, _PROCESS_SHARE = 500.0, 0.015
"""Standard deviations of a call between processes that run the same code: nanoseconds, and a share of what the call
takes beyond its bound.

Python code that keeps the host busy for the whole call shows the share; matrix products show none (docs/clock.md).
"""
_MOST_OFFSET_NS = 400.0
"""Event readings of two processes differ by at most so much (docs/clock.md)."""
_FEW = 4


def bounded_process_error(latency_ns: float, bound_ns: float) -> float:
    """Standard deviation of ln(latency) between processes, for a call that `bound_ns` of the device's time limits."""
    host_ns = max(0.0, latency_ns - bound_ns)
    return math.hypot(_PROCESS_NS, _PROCESS_SHARE * host_ns) / latency_ns


def process_offset_ns(runner_ns: float, judge_ns: float) -> float:
    """Difference between two processes' event readings of the same kernels, in nanoseconds.

    A difference above what processes were ever seen to have is a disturbed measurement, and counts as 0.
    """
    offset_ns = runner_ns - judge_ns
    return offset_ns if abs(offset_ns) <= _MOST_OFFSET_NS else 0.0


def held_calls(count: int) -> frozenset[int]:
    """Calls of a batch that are held, by index: each by chance, but never all that may count."""
    held = {index for index in range(1, count) if not secrets.randbelow(_HELD_SHARE)}
    if held and len(held) == count - 1:
        held.remove(secrets.choice(sorted(held)))
    return frozenset(held)


def middle_mean(values: Sequence[int]) -> float:
    """Mean of the middle half of the values; of three or fewer the median."""
    ordered = sorted(values)
    if len(ordered) < _FEW:
        return statistics.median(ordered)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])
