"""Overhead of a pair of device events: the time between them less the duration of the kernel that they enclose."""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Iterable, Sequence

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined] # documented, and not exported by its stub

from harness.runner.launcher import TrustedKernels

_UNTRACED_LIMIT_US = 2.4
"""Largest overhead that is assumed without CUPTI: the smallest one that CUPTI showed on any host (docs/clock.md)."""
_PLAUSIBLE_US = (0.5, 10.0)
_KERNELS_PER_READING = ("hold", "read")
"""Kernels that are enqueued before the timed kernel of a reading; `read` displaces L2."""
_TRACED = frozenset({"hold", "read", "fill"})
TracedKernel = tuple[float, str, float]
"""Start on the device, name, and duration of a kernel, in microseconds."""


def event_overhead_us(trusted: TrustedKernels, short_kernels_us: Sequence[float]) -> float:
    """Return what events around a kernel read beyond its duration, in microseconds.

    The overhead belongs to the host: 2.2 us on some hosts and 4.1 us on others with the same GPU and driver, and the
    same for kernels of 1 to 200 us (docs/clock.md). CUPTI's durations of the short kernels that write show it; every
    solution writes its outputs, and kernels that only read have 0.3 us less. Without CUPTI the overhead of a kernel
    that times itself is used, at most 2.4 us: an overhead that is too large would make short kernels look faster than
    they are.

    Args:
        trusted: the trusted kernels.
        short_kernels_us: `trusted.short_kernels_us()` of this process, measured without a profiler.
    """
    traced_us = writing_kernels_us(_trace(trusted))
    overhead_us = statistics.fmean(short_kernels_us[len(short_kernels_us) // 2 :]) - traced_us
    if _PLAUSIBLE_US[0] < overhead_us < _PLAUSIBLE_US[1]:
        return overhead_us
    return min(_UNTRACED_LIMIT_US, trusted.pair_overhead_us())


def writing_kernels_us(kernels: Iterable[TracedKernel]) -> float:
    """Return the mean duration of the short kernels that write, averaged like `TrustedKernels.short_kernels_us`.

    Args:
        kernels: all traced kernels of `short_kernels_us`, in any order; others are ignored.

    Returns:
        Microseconds; nan if the trace is incomplete.
    """
    ordered = sorted(kernel for kernel in kernels if kernel[1] in _TRACED)
    starts = [index for index, (_, name, _) in enumerate(ordered) if name == _KERNELS_PER_READING[0]]
    readings = [ordered[begin:end] for begin, end in itertools.pairwise([*starts, len(ordered)])]
    complete = all(len(reading) == len(_KERNELS_PER_READING) + 1 for reading in readings)
    if not complete or len(readings) != TrustedKernels.SHORT_READINGS:
        return math.nan
    durations_us = [reading[-1][2] for reading in readings]
    by_kernel = _chunks(durations_us)
    return statistics.fmean(statistics.median(repeats) for repeats in by_kernel[len(by_kernel) // 2 :])


def _chunks(values: Sequence[float]) -> list[Sequence[float]]:
    """Split the durations by kernel: the readings of one kernel follow each other."""
    size = TrustedKernels.SHORT_REPEATS
    return [values[begin : begin + size] for begin in range(0, len(values), size)]


def _trace(trusted: TrustedKernels) -> list[TracedKernel]:
    """Trace the short kernels with CUPTI, through torch's profiler; empty where it is not available."""
    activity = torch.profiler.ProfilerActivity.CUDA
    if activity not in torch.profiler.supported_activities():  # type: ignore[no-untyped-call]
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(activities=[activity]) as profile:
                trusted.short_kernels_us()
            events = profile.events() or ()
    except RuntimeError:
        return []
    return [
        (event.time_range.start, event.name, event.device_time)
        for event in events
        if event.device_type == DeviceType.CUDA
    ]
