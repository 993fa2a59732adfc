"""Simulated problems: their keys, bounds and costs, and attempts at faster solutions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FAMILIES = (
    "attention", "convolution", "elementwise", "embedding", "gemm", "mlp",
    "moe", "normalisation", "quantised", "reduction", "rope", "ssm",
)  # fmt: skip
"""Suites of the simulated problems. The first part of a problem's key is its family."""

_JUDGE_MEDIAN_S = 12.0
_JUDGE_SIGMA = 0.45
"""Seconds to judge one candidate with all workloads, log-normal.

Source: the 14 shipped solutions took 7.4 to 34.2 s on an H200, median 11 s (docs/performance.md). The median is
a little higher because confirmations are counted here.
"""
_AGENT_MEDIAN_MIN = 18.0
_AGENT_SIGMA_BETWEEN = 0.35
_AGENT_SIGMA_WITHIN = 0.5
"""Minutes of an agent's work per submission, log-normal, mean 21.7.

Source: an agent that worked alone on attention for 7 days explored more than 500 directions, one in 20 minutes (Chen et
al., AVO, arXiv 2603.24517).
"""

Attempt = Callable[[random.Random], float | None]
"""Makes one attempt and returns ln of the candidate's true speed-up over the baseline, or None if it does not pass.

The function has the state of the problem, which earlier attempts have changed.
"""


@dataclass(frozen=True)
class SimulatedProblem:
    """A problem of a world, with a random generator of its own, so that all policies get the same random numbers."""

    key: str
    """`family/name`."""
    headroom: float
    """ln of the speed-up at the bound."""
    judge_median_s: float
    agent_median_min: float
    attempt: Attempt
    rng: random.Random

    def agent_s(self) -> float:
        """Draw the seconds that an agent works on the next submission."""
        return 60.0 * self.agent_median_min * math.exp(self.rng.gauss(0.0, _AGENT_SIGMA_WITHIN))

    def judge_s(self) -> float:
        """Draw the seconds that a GPU is busy with the submission."""
        return self.judge_median_s * math.exp(self.rng.gauss(0.0, 0.15))


def make_problem(
    number: int, family: str, headroom: float, attempt: Attempt, rng: random.Random, seed: str
) -> SimulatedProblem:
    """Return a problem with randomly drawn costs.

    Args:
        number: number of the problem in its world, from 0.
        family: one of `FAMILIES`.
        headroom: ln of the speed-up at the bound.
        attempt: makes one attempt.
        rng: the world's generator, which draws the costs.
        seed: seed of the problem's own generator.
    """
    return SimulatedProblem(
        key=f"{family}/p{number:03}",
        headroom=headroom,
        judge_median_s=_JUDGE_MEDIAN_S * math.exp(rng.gauss(0.0, _JUDGE_SIGMA)),
        agent_median_min=_AGENT_MEDIAN_MIN * math.exp(rng.gauss(0.0, _AGENT_SIGMA_BETWEEN)),
        attempt=attempt,
        rng=random.Random(f"{seed}/{number}"),  # noqa: S311 - a simulation
    )


def spread_evenly(problems: Sequence[SimulatedProblem], attempts: int) -> list[float]:
    """Make attempts on each problem in turn, without a clock; the worlds are fitted with these results.

    Args:
        problems: of one realisation of a world.
        attempts: number of attempts on each problem.

    Returns:
        ln of the best speed-up of each problem; -inf if no attempt passed.
    """
    best = [-math.inf] * len(problems)
    for _ in range(attempts):
        for number, problem in enumerate(problems):
            log_speedup = problem.attempt(problem.rng)
            if log_speedup is not None and log_speedup > best[number]:
                best[number] = log_speedup
    return best
