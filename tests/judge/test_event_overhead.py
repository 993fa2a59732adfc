"""The duration of the judge's short kernels in a trace, from which the overhead of device events follows."""

from __future__ import annotations

import math
import random
from unittest import mock

import pytest

from harness.judge.devices.event_overhead import TracedKernel, event_overhead_us, writing_kernels_us
from harness.runner.launcher import TrustedKernels


def trace(durations_us: list[float]) -> list[TracedKernel]:
    """Return a trace with one reading for each duration, and one kernel of torch before them."""
    kernels: list[TracedKernel] = [(0.0, "fill", 3.0), (1.0, "elementwise_kernel", 3.0)]
    for number, duration_us in enumerate(durations_us):
        start_us = 10.0 + 100.0 * number
        kernels += [(start_us, "read", 40.0), (start_us + 40.0, "hold", 5.0)]
        kernels.append((start_us + 45.0, "fill" if number % 2 else "read", duration_us))
    return kernels


def test_the_medians_of_the_kernels_that_write_are_averaged() -> None:
    quarter = TrustedKernels.SHORT_READINGS // 4
    durations_us = [9.0] * (2 * quarter) + [1.0] * quarter + [2.0] * quarter
    durations_us[-1] = 500.0  # an outlier among the readings of one kernel
    kernels = trace(durations_us)
    random.Random(1).shuffle(kernels)
    assert writing_kernels_us(kernels) == pytest.approx(1.5)


@pytest.mark.parametrize("missing", ["none traced", "one reading", "one kernel"])
def test_an_incomplete_trace_gives_no_duration(missing: str) -> None:
    kernels = trace([1.0] * TrustedKernels.SHORT_READINGS)
    kernels = {"none traced": [], "one reading": kernels[:-3], "one kernel": kernels[:-1]}[missing]
    assert math.isnan(writing_kernels_us(kernels))


@pytest.mark.parametrize(("self_timed_us", "subtracted_us"), [(2.1, 2.1), (4.37, 2.4)])
def test_without_a_trace_the_overhead_of_a_self_timed_kernel_counts_up_to_a_limit(
    self_timed_us: float, subtracted_us: float
) -> None:
    """With a stand-in for the GPU."""
    trusted = mock.create_autospec(TrustedKernels, instance=True)
    trusted.pair_overhead_us.return_value = self_timed_us
    assert event_overhead_us(trusted, [7.0, 7.0]) == subtracted_us
