"""Prediction of a second measurement of the same candidate from the noise of its blocks and that between sessions.

The judge's interval covers the speed-up within one session. Another session has other clock frequencies, another memory
layout and other processes on the machine, so two honest measurements differ by more than their intervals. The variance
of their difference is e1^2 + e2^2 + 2 s^2: e1 and e2 are their standard errors, s is the standard deviation between
sessions, all on the log scale. The method of moments estimates s from the pairs of a ledger: each evaluation and its
confirmation. Only evaluations with a high speed-up are confirmed, so the pairs include selection bias. It makes s
larger and the comparison more tolerant, never stricter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.model.interval import mean_and_error, student_quantile
from harness.model.judging import WorkloadResult

DEFAULT_DEVIATION = 0.05
"""Deviation between sessions of ln(speed-up) that is assumed where a ledger has fewer than `MIN_PAIRS` pairs.

0.02 was too small on a shared CPU: two sessions measured 2.28x and 2.57x for the same tree.
"""
MIN_PAIRS = 6
_MIN_DEVIATION = 0.002
"""Lower bound of the estimated deviation: a few pairs that agree by chance must not make honest reruns fail."""
_NORMAL_FREEDOM = 1e6
"""Degrees of freedom with which the t-distribution is practically normal."""


@dataclass(frozen=True)
class Estimate:
    """ln(speed-up) of a measurement and its standard error within the session."""

    mean: float
    error: float


@dataclass(frozen=True)
class Spread:
    """Deviation between the measurements of one candidate in different sessions."""

    deviation: float
    """Standard deviation of ln(speed-up), approximately a share of the speed-up."""
    pairs: int
    """Number of pairs of the estimate; 0 for the default deviation."""


def estimate_of(workloads: Sequence[WorkloadResult]) -> Estimate | None:
    """Return the estimate of the geometric mean from block ratios; None if a workload has fewer than two blocks."""
    if not workloads or any(len(workload.log_ratios) < 2 for workload in workloads):
        return None
    means, errors = zip(*(mean_and_error(workload.log_ratios) for workload in workloads), strict=True)
    return Estimate(math.fsum(means) / len(means), math.hypot(*errors) / len(errors))


def spread_between(pairs: Iterable[tuple[Estimate, Estimate]]) -> Spread:
    """Return the deviation between sessions, estimated from pairs of measurements of the same candidate."""
    variances = [((second.mean - first.mean) ** 2 - first.error**2 - second.error**2) / 2 for first, second in pairs]
    if len(variances) < MIN_PAIRS:
        return Spread(DEFAULT_DEVIATION, 0)
    return Spread(math.sqrt(max(math.fsum(variances) / len(variances), _MIN_DEVIATION**2)), len(variances))


def prediction_interval(
    recorded: Estimate, error: float, spread: Spread, *, comparisons: int = 1
) -> tuple[float, float]:
    """Return the 95 % prediction interval of a new measurement's speed-up, if the recorded one is honest.

    Args:
        recorded: the estimate from a ledger entry.
        error: standard error of ln(speed-up) of the new measurement.
        spread: deviation between sessions.
        comparisons: number of comparisons that all hold with a probability of 95 % (Bonferroni).
    """
    freedom = float(spread.pairs) if spread.pairs else _NORMAL_FREEDOM
    half_width = student_quantile(freedom, 1 - 0.025 / comparisons) * math.sqrt(
        recorded.error**2 + error**2 + 2 * spread.deviation**2
    )
    return math.exp(recorded.mean - half_width), math.exp(recorded.mean + half_width)
