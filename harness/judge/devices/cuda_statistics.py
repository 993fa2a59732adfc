"""Statistics of calls on a CUDA device: the calls that count, their mean, and differences between processes."""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Sequence

_HELD_SHARE = 4
"""One call in this number is held."""
_PROCESS_NS, _PROCESS_SHARE = 500.0, 0.015
"""Standard deviations of a call between processes that run the same code: nanoseconds, and a share of the time above
the call's lower bound.

Python code that keeps the host busy for the whole call has this share; matrix products have none (docs/clock.md).
"""
_MAX_OFFSET_NS = 400.0
"""Largest difference between event readings of two processes (docs/clock.md)."""
_MIN_VALUES_FOR_QUARTILES = 4


def bounded_process_error(latency_ns: float, bound_ns: float) -> float:
    """Return the standard deviation of ln(latency) between processes that run the same code.

    Args:
        latency_ns: latency of a call.
        bound_ns: lower bound of the call's time on the device; 0.0 if it is not known.
    """
    host_ns = max(0.0, latency_ns - bound_ns)
    return math.hypot(_PROCESS_NS, _PROCESS_SHARE * host_ns) / latency_ns


def process_offset_ns(runner_ns: float, judge_ns: float) -> float:
    """Return the difference between two processes' event readings of the same kernels, in nanoseconds.

    A difference above the largest that was measured between processes is a disturbed measurement, and counts as 0.

    Args:
        runner_ns: reading in the runner.
        judge_ns: reading in the judge.
    """
    offset_ns = runner_ns - judge_ns
    return offset_ns if abs(offset_ns) <= _MAX_OFFSET_NS else 0.0


def held_calls(count: int) -> frozenset[int]:
    """Return the indices of a batch's held calls: a random choice that never includes all calls that may count."""
    held_indices = {index for index in range(1, count) if not secrets.randbelow(_HELD_SHARE)}
    if held_indices and len(held_indices) == count - 1:
        held_indices.remove(secrets.choice(sorted(held_indices)))
    return frozenset(held_indices)


def middle_mean(values: Sequence[int]) -> float:
    """Return the mean of the middle half of the values, or the median of three or fewer."""
    ordered = sorted(values)
    if len(ordered) < _MIN_VALUES_FOR_QUARTILES:
        return statistics.median(ordered)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])
