"""The duration of the judge's short kernels in a trace, from which the overhead of device events follows."""

from __future__ import annotations

import math
import random

import pytest

from harness.judge.devices.event_overhead import TracedKernel, short_kernel_duration_us
from harness.runner.launcher import TrustedKernels


def trace(durations_us: list[float]) -> list[TracedKernel]:
    """Return a trace with one reading for each duration, and one kernel of torch before them."""
    kernels: list[TracedKernel] = [(0.0, "fill", 3.0), (1.0, "elementwise_kernel", 3.0)]
    for number, duration_us in enumerate(durations_us):
        start_us = 10.0 + 100.0 * number
        kernels += [(start_us, "hold", 5.0), (start_us + 5.0, "read", 40.0)]
        kernels.append((start_us + 45.0, "fill" if number % 2 else "read", duration_us))
    return kernels


def test_the_medians_of_the_kernels_are_averaged() -> None:
    durations_us = [1.0] * (TrustedKernels.SHORT_READINGS // 2) + [2.0] * (TrustedKernels.SHORT_READINGS // 2)
    durations_us[0] = 500.0  # an outlier among the readings of one kernel
    kernels = trace(durations_us)
    random.Random(1).shuffle(kernels)
    assert short_kernel_duration_us(kernels) == pytest.approx(1.5)


@pytest.mark.parametrize("missing", ["none traced", "one reading", "one kernel"])
def test_an_incomplete_trace_gives_no_duration(missing: str) -> None:
    kernels = trace([1.0] * TrustedKernels.SHORT_READINGS)
    kernels = {"none traced": [], "one reading": kernels[:-3], "one kernel": kernels[:-1]}[missing]
    assert math.isnan(short_kernel_duration_us(kernels))
