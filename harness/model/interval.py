"""Intervals of speed-ups. The judge computes them, and the audit computes them again from the recorded block ratios.

A workload's speed-up is exp(mean of its block log ratios); its interval is a t-interval on the log ratios. Timing stops
as soon as the interval is narrow enough. A small variance by chance therefore stops it too early, and a plain 95 %
t-interval is too narrow: in simulation it covers the true value in 93.7 to 95 % of cases on normal blocks. The
quantile of a 96 % interval is used instead. Its coverage in simulation (tests/model/test_interval.py):

- 94.8 to 96.0 % on normal blocks;
- 95.2 to 96.2 % when 5 % of the blocks have five times the spread;
- 92.5 to 95.7 % when 3 % of the blocks are one-sided spikes of six standard deviations.

Stein's two-stage interval, in which the variance of the first 12 blocks determines the number of blocks, is exact on
normal blocks. It is not used for two reasons. Its coverage falls to 86 % with spikes, which real machines have. And it
needs the number of blocks in advance, which the discarded blocks of a throttled device change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.model.judging import Summary, WorkloadResult
from harness.model.verdict import Verdict

FIRST_BLOCKS = 12
"""Minimum number of kept blocks of a workload (docs/judge.md)."""

MAX_BLOCKS = 240
"""Maximum number of kept blocks: with more of them, drift and not noise determines the error."""

_STOPPED_QUANTILE = 0.98
"""Upper quantile of the 96 % interval that covers 95 % under adaptive stopping (see above)."""


@dataclass(frozen=True)
class SetupError:
    """Standard errors of a workload's mean log ratio that the spread of its blocks lacks: all blocks have one setup."""

    placement: float = 0.0
    """Error from the finite number of placements in memory; independent for each workload."""
    process: float = 0.0
    """Error from the processes of both sides, which all workloads of an evaluation share."""

    @classmethod
    def of(cls, workload: WorkloadResult) -> SetupError:
        """Return the recorded errors of a workload; 0 where a result has none."""
        return cls(workload.placement_error or 0.0, workload.process_error or 0.0)


NO_SETUP_ERROR = SetupError()


def stopped_interval(log_ratios: Sequence[float], setup: SetupError = NO_SETUP_ERROR) -> tuple[float, float]:
    """Return mean and half-width, on the log scale, of an interval with 95 % coverage under adaptive stopping.

    Args:
        log_ratios: ln(baseline / candidate) of each kept block.
        setup: errors that the spread of the blocks lacks; they are independent of the blocks' own error.

    Raises:
        ValueError: fewer than two blocks.
    """
    mean, error = mean_and_error(log_ratios)
    return mean, student_quantile(len(log_ratios) - 1, _STOPPED_QUANTILE) * math.hypot(
        error, setup.placement, setup.process
    )


def workload_interval(
    log_ratios: Sequence[float], setup: SetupError = NO_SETUP_ERROR
) -> tuple[float, tuple[float, float]]:
    """Return a workload's speed-up and its 95 % interval.

    Args:
        log_ratios: ln(baseline / candidate) of each kept block.
        setup: as of `stopped_interval`.

    Raises:
        ValueError: fewer than two blocks.
    """
    mean, half = stopped_interval(log_ratios, setup)
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def blocks_needed(log_ratios: Sequence[float], half_width: float, *, max_blocks: int = MAX_BLOCKS) -> int:
    """Return an estimate of the kept blocks that a workload needs; `len(log_ratios)` when timing may stop.

    The estimate is `FIRST_BLOCKS` before there are so many blocks. Estimate again when the estimated number is reached:
    `while len(ratios) < blocks_needed(ratios, 0.02): ...`.

    Args:
        log_ratios: ln(baseline / candidate) of the blocks kept so far.
        half_width: the half-width to reach, as a share of the speed-up: 0.02 for 2 %.
        max_blocks: upper bound of the result.
    """
    count = len(log_ratios)
    if count < FIRST_BLOCKS:
        return min(FIRST_BLOCKS, max_blocks)
    _, log_half_width = stopped_interval(log_ratios)
    target = math.log1p(half_width)
    if log_half_width <= target or count >= max_blocks:
        return count
    return min(max(count + 1, math.ceil(count * (log_half_width / target) ** 2)), max_blocks)


def summarise(workloads: Sequence[WorkloadResult]) -> Summary:
    """Return the summary: geometric mean of the speed-ups with its interval, arithmetic mean of the scores.

    Speed-up, interval and score exist only when every workload passed. The interval also needs two kept blocks of each
    workload. The mean ignores workloads without a score, whose baseline already reaches the bound.
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
    """Return the geometric mean of the workloads' speed-ups and its 95 % interval.

    All workloads share the error of the processes, so their number does not reduce it. The other errors are
    independent: the mean of m means with errors e_i has the variance sum(e_i^2) / m^2. Its degrees of freedom are
    (sum e_i^2)^2 / sum(e_i^4 / (n_i - 1)), after Welch and Satterthwaite (Welch 1947, Biometrika 34:28).

    Args:
        workloads: ln(baseline / candidate) of each kept block, for each workload.
        setups: setup errors of each workload, as of `stopped_interval`; None for no such errors.

    Raises:
        ValueError: no workload, or one with fewer than two blocks.
    """
    if not workloads:
        raise ValueError("no workloads to summarise")
    parts = [mean_and_error(log_ratios) for log_ratios in workloads]
    mean = math.fsum(part[0] for part in parts) / len(parts)
    setups = setups if setups is not None else [NO_SETUP_ERROR] * len(parts)
    variances = [error**2 + setup.placement**2 for (_, error), setup in zip(parts, setups, strict=True)]
    total, common = math.fsum(variances), math.fsum(setup.process for setup in setups) / len(parts)
    if total == 0.0:
        half = student_quantile(math.inf, _STOPPED_QUANTILE) * common
        return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))
    # Shares of the total, so that tiny variances do not underflow when squared.
    freedom = 1.0 / math.fsum(
        (variance / total) ** 2 / (len(log_ratios) - 1)
        for variance, log_ratios in zip(variances, workloads, strict=True)
    )
    half = student_quantile(freedom, _STOPPED_QUANTILE) * math.hypot(math.sqrt(total) / len(parts), common)
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values and its standard error.

    Raises:
        ValueError: fewer than two values.
    """
    count = len(values)
    if count < 2:
        raise ValueError(f"an interval needs at least two values, not {count}")
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def student_quantile(freedom: float, probability: float) -> float:
    """Return a quantile of Student's t-distribution.

    Args:
        freedom: degrees of freedom; infinity for the normal distribution.
        probability: share of the distribution below the quantile.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import, and only intervals need it

    return float(stdtrit(freedom, probability))


def geometric_mean(values: Iterable[float]) -> float:
    """Return exp of the mean of the values' logarithms: the average for ratios and for latencies of different sizes.

    Args:
        values: positive and finite; the result has their unit.

    Raises:
        ValueError: no value, or one that is not positive.
    """
    logarithms = [math.log(value) for value in values]
    if not logarithms:
        raise ValueError("the geometric mean of no values is not defined")
    return math.exp(math.fsum(logarithms) / len(logarithms))
