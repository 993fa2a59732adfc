"""Overhead of a pair of device events: the time between them less the duration of the kernel that they enclose."""

from __future__ import annotations

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
_DISPLACE, _HOLD, _WRITE = "read", "hold", "fill"
"""Kernels of a reading: L2 is displaced, the queue held, and a kernel that reads or writes is timed."""
_KERNELS_PER_READING = 3
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
    ordered = sorted(kernel for kernel in kernels if kernel[1] in {_DISPLACE, _HOLD, _WRITE})
    ordered = ordered[-_KERNELS_PER_READING * TrustedKernels.SHORT_READINGS :]  # others may precede the first reading
    names = [name for _, name, _ in ordered]
    complete = len(ordered) == _KERNELS_PER_READING * TrustedKernels.SHORT_READINGS
    if not complete or {*names[0::3]} != {_DISPLACE} or {*names[1::3]} != {_HOLD} or _HOLD in names[2::3]:
        return math.nan
    durations_us = [duration_us for _, _, duration_us in ordered[2::3]]
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
