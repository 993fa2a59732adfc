"""Figures of the public result that the simulated worlds are fitted to, and of a simulated run.

Source: Lin, Modi, Zhang, Lin, "Speeding up GPU kernels by 38% with a multi-agent system", Cursor and NVIDIA, 14 April
2026: 235 problems of SOL-ExecBench, three weeks, 27 B200, 149 problems faster than the baseline, 45 more than twice
as fast. The median SOL score of 0.56 belongs to the same result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.sol.score import score

PROBLEMS = 235
GPUS = 27
WEEKS = 3


@dataclass(frozen=True)
class ResultFigures:
    """Four figures of a run over many problems."""

    geometric_mean: float
    """Geometric mean of the speed-ups over the baseline; 1 for a problem without a faster solution."""
    faster: float
    """Share of problems with a solution faster than the baseline."""
    above_2x: float
    """Share of problems with a speed-up above 2."""
    median_score: float
    """Median SOL score; 0.5 is the baseline, 1 the bound."""


PUBLISHED = ResultFigures(geometric_mean=1.38, faster=149 / 235, above_2x=45 / 235, median_score=0.56)

SAMPLING_ERROR = ResultFigures(geometric_mean=0.045, faster=0.031, above_2x=0.026, median_score=0.015)
"""Standard errors of the published figures as a sample of 235 problems.

Shares: binomial. Geometric mean: 1.38 x 0.5 / sqrt(235), with 0.5 for the standard deviation of the log speed-ups
(63 % of the problems at a mean log of 0.51). Score: 1.25 x 0.18 / sqrt(235), the error of a median at a spread of 0.18.
"""


def figures(log_speedups: Sequence[float], headrooms: Sequence[float]) -> ResultFigures:
    """Return the four figures of a run.

    Args:
        log_speedups: ln of the best solution's speed-up over the baseline for each problem; -inf if no solution passed.
        headrooms: ln of the speed-up at the bound for each problem.
    """
    gains = [max(0.0, log_speedup) for log_speedup in log_speedups]
    scores = [sol_score(gain, headroom) for gain, headroom in zip(gains, headrooms, strict=True)]
    return ResultFigures(
        geometric_mean=math.exp(sum(gains) / len(gains)),
        faster=sum(gain > 0 for gain in gains) / len(gains),
        above_2x=sum(gain > math.log(2) for gain in gains) / len(gains),
        median_score=median(scores),
    )


def sol_score(log_speedup: float, headroom: float) -> float:
    """Return the SOL score of a solution that is not below the bound.

    Args:
        log_speedup: ln of the speed-up over the baseline.
        headroom: ln of the speed-up at the bound, positive.
    """
    value = score(math.exp(-log_speedup), 1.0, math.exp(-headroom))
    assert value is not None, (log_speedup, headroom)  # noqa: S101 - the worlds stay above the bound
    return value
