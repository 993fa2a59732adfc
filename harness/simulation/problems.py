"""One simulated problem: its place in the repository, its bound, its costs, and how its solutions get faster."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

FAMILIES = (
    "attention", "convolution", "elementwise", "embedding", "gemm", "mlp",
    "moe", "normalisation", "quantised", "reduction", "rope", "ssm",
)  # fmt: skip
"""Suites of the simulated problems. A policy sees the family as the first part of the problem's key."""

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
"""Make one attempt: ln of the candidate's true speed-up over the baseline, or None where it does not pass.

The function holds the state of the problem: what was reached so far.
"""


@dataclass(frozen=True)
class SimulatedProblem:
    """A problem of a world. Its random numbers are its own, so that policies meet the same luck on it."""

    key: str
    """`family/name`."""
    headroom: float
    """ln of the speed-up at the bound."""
    judge_median_s: float
    agent_median_min: float
    attempt: Attempt
    rng: random.Random

    def agent_s(self) -> float:
        """Draw how long an agent works on the next submission, in seconds."""
        return 60.0 * self.agent_median_min * math.exp(self.rng.gauss(0.0, _AGENT_SIGMA_WITHIN))

    def judge_s(self) -> float:
        """Draw how long a GPU is busy with the submission, in seconds."""
        return self.judge_median_s * math.exp(self.rng.gauss(0.0, 0.15))


def make_problem(
    number: int, family: str, headroom: float, attempt: Attempt, rng: random.Random, seed: str
) -> SimulatedProblem:
    """Return a problem with costs drawn from `rng`, which is the world's; the problem's own generator has `seed`."""
    return SimulatedProblem(
        key=f"{family}/p{number:03}",
        headroom=headroom,
        judge_median_s=_JUDGE_MEDIAN_S * math.exp(rng.gauss(0.0, _JUDGE_SIGMA)),
        agent_median_min=_AGENT_MEDIAN_MIN * math.exp(rng.gauss(0.0, _AGENT_SIGMA_BETWEEN)),
        attempt=attempt,
        rng=random.Random(f"{seed}/{number}"),  # noqa: S311 - a simulation
    )
