"""Intervals of speed-ups: what the judge writes and what the audit derives again from the same parts.

A workload's speed-up is exp(mean of its block log ratios), its interval a t-interval on those. Timing stops as soon as
the interval is narrow enough, and stopping on a lucky small variance makes a plain 95 % t-interval too narrow: by
simulation it holds the truth in 93.7 to 95 % of cases on normal blocks. So the quantile is the one of 96 %, which makes
it 94.8 to 96.0 % on normal blocks, 95.2 to 96.2 % when 5 % of the blocks have five times the spread, and 92.5 to 95.7 %
when 3 % of the blocks are one-sided spikes of six standard deviations (tests/model/test_interval.py). Stein's
two-stage interval (the first 12 blocks' variance fixes the number of blocks) is exact on normal blocks, but falls to
86 % with spikes, which real machines have; and it needs the number of blocks settled in advance, which throttled and
therefore discarded blocks upset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.model.geometric_mean import geometric_mean
from harness.model.judging import Summary, WorkloadResult
from harness.model.verdict import Verdict

FIRST_BLOCKS = 12
"""No workload is timed with fewer blocks (docs/judge.md)."""

MAX_BLOCKS = 240
"""More blocks than these do not help: what is left is drift, not noise."""

_STOPPED_QUANTILE = 0.98
"""Upper quantile of the 96 % interval that covers 95 % under adaptive stopping (see above)."""


@dataclass(frozen=True)
class SetupError:
    """Standard errors of a workload's mean log ratio that do not show between blocks, which all have the same setup."""

    placement: float = 0.0
    """From the finite number of placements in memory; drawn for each workload."""
    process: float = 0.0
    """From the processes of both sides, which all workloads of an evaluation share."""

    @classmethod
    def of(cls, workload: WorkloadResult) -> SetupError:
        """As recorded; 0 where a result has none."""
        return cls(workload.placement_error or 0.0, workload.process_error or 0.0)


NO_SETUP_ERROR = SetupError()


def stopped_interval(log_ratios: Sequence[float], setup: SetupError = NO_SETUP_ERROR) -> tuple[float, float]:
    """Mean and half-width, on the log scale, of an interval that covers 95 % although timing stopped adaptively.

    Args:
        log_ratios: ln(baseline / candidate) of each kept block.
        setup: errors that do not show between blocks, and are independent of the blocks' own.

    Raises:
        ValueError: fewer than two blocks.
    """
    mean, error = _mean_and_error(log_ratios)
    return mean, _quantile(len(log_ratios) - 1, _STOPPED_QUANTILE) * math.hypot(error, setup.placement, setup.process)


def workload_interval(
    log_ratios: Sequence[float], setup: SetupError = NO_SETUP_ERROR
) -> tuple[float, tuple[float, float]]:
    """Speed-up and its 95 % interval, from the log ratios ln(baseline / candidate) of the blocks that were kept.

    Args:
        log_ratios: as of `stopped_interval`.
        setup: as of `stopped_interval`.

    Raises:
        ValueError: fewer than two blocks.
    """
    mean, half = stopped_interval(log_ratios, setup)
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def blocks_needed(log_ratios: Sequence[float], half_width: float, *, most: int = MAX_BLOCKS) -> int:
    """How many kept blocks the workload needs, as its blocks so far let one guess; `len(log_ratios)` when it may stop.

    Ask again when there are so many: `while len(ratios) < blocks_needed(ratios, 0.02): ...`. With fewer than
    `FIRST_BLOCKS` the answer is `FIRST_BLOCKS`; it is never above `most`.

    Args:
        log_ratios: the kept blocks so far.
        half_width: the wanted half-width as a share of the speed-up, 0.02 for 2 %.
        most: the cap on blocks.
    """
    count = len(log_ratios)
    if count < FIRST_BLOCKS:
        return min(FIRST_BLOCKS, most)
    _, half = stopped_interval(log_ratios)
    target = math.log1p(half_width)
    if half <= target or count >= most:
        return count
    return min(max(count + 1, math.ceil(count * (half / target) ** 2)), most)


def summarise(workloads: Sequence[WorkloadResult]) -> Summary:
    """The workloads together: geometric mean of speed-ups with its interval, arithmetic mean of the scores there are.

    Speed-up, interval and score exist only when every workload passed; the interval moreover needs two kept blocks of
    each, and a workload without a score (its baseline is at the bound already) does not take part in the mean.
    """
    passed = sum(workload.verdict is Verdict.PASSED for workload in workloads)
    summary = Summary(passed=passed, of=len(workloads))
    if passed < len(workloads) or not workloads or any(workload.speedup is None for workload in workloads):
        return summary
    scores = [workload.score for workload in workloads if workload.score is not None]
    mean_score = math.fsum(scores) / len(scores) if scores else None
    if all(len(workload.log_ratios) > 1 for workload in workloads):
        speedup, interval = summary_interval(
            [workload.log_ratios for workload in workloads], [SetupError.of(workload) for workload in workloads]
        )
        return summary.model_copy(update={"speedup": speedup, "speedup_ci95": interval, "score": mean_score})
    speedup = geometric_mean(workload.speedup for workload in workloads if workload.speedup is not None)
    return summary.model_copy(update={"speedup": speedup, "score": mean_score})


def summary_interval(
    workloads: Sequence[Sequence[float]], setups: Sequence[SetupError] | None = None
) -> tuple[float, tuple[float, float]]:
    """Geometric mean of the workloads' speed-ups and its 95 % interval.

    Args:
        workloads: the block log ratios of each workload.
        setups: of each workload, errors as of `stopped_interval`; None for none.

    The error of the processes is the same for all workloads, so that it does not become smaller with their number. For
    the rest: the mean of independent means has the variance sum(e_i^2) / m^2; its degrees of freedom are Welch's and
    Satterthwaite's (Welch 1947, Biometrika 34:28), (sum e_i^2)^2 / sum(e_i^4 / (n_i - 1)).

    Raises:
        ValueError: no workload, or one with fewer than two blocks.
    """
    if not workloads:
        raise ValueError("no workloads to summarise")
    parts = [_mean_and_error(log_ratios) for log_ratios in workloads]
    mean = math.fsum(part[0] for part in parts) / len(parts)
    setups = setups if setups is not None else [NO_SETUP_ERROR] * len(parts)
    variances = [error**2 + setup.placement**2 for (_, error), setup in zip(parts, setups, strict=True)]
    total, common = math.fsum(variances), math.fsum(setup.process for setup in setups) / len(parts)
    if total == 0.0:
        half = _quantile(math.inf, _STOPPED_QUANTILE) * common
        return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))
    # Shares of the total, so that tiny variances do not underflow when squared.
    freedom = 1.0 / math.fsum(
        (variance / total) ** 2 / (len(log_ratios) - 1)
        for variance, log_ratios in zip(variances, workloads, strict=True)
    )
    half = _quantile(freedom, _STOPPED_QUANTILE) * math.hypot(math.sqrt(total) / len(parts), common)
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    count = len(values)
    if count < 2:
        raise ValueError(f"an interval needs at least two values, not {count}")
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def _quantile(freedom: float, probability: float) -> float:
    """Quantile of Student's t; scipy is imported when the first interval is made, not with this module."""
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(freedom, probability))
