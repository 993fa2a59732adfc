"""What a second measurement of the same candidate should give: its blocks' noise, and what differs between sessions.

Within one session the judge's interval holds the speed-up of that session. Another session has other clocks, another
layout of memory, other neighbours; two honest measurements differ by more than their intervals say. The variance of
their difference is e1^2 + e2^2 + 2 s^2, with the standard errors e of each and the deviation s between sessions, all on
the log scale. s is estimated from pairs that a ledger holds anyway: each evaluation and its confirmation (method of
moments). Confirmations are made of evaluations that came out well, so the pairs also carry the luck of the first of
the two; that makes s larger and the comparison milder, never stricter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.model.judging import WorkloadResult

WITHOUT_PAIRS = 0.05
"""The deviation between sessions, as a share, where a ledger has too few pairs to say: a cautious guess. On a CPU that
others use too, 0.02 was seen to be too little: 2.28x and 2.57x for the same tree."""
FEWEST_PAIRS = 6
_LEAST = 0.002
"""No machine repeats itself more exactly than this: a lucky handful of pairs must not make honest reruns fail."""
_LARGE = 1e6
"""Degrees of freedom that make t a normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A measurement on the log scale: ln(speed-up) and its standard error within the session."""

    mean: float
    error: float


@dataclass(frozen=True)
class Spread:
    """How much measurements of one candidate differ between sessions."""

    deviation: float
    """Of ln(speed-up), so nearly a share."""
    pairs: int
    """How many pairs it was estimated from; 0 where it is the guess."""


def estimate_of(workloads: Sequence[WorkloadResult]) -> Estimate | None:
    """The geometric mean's estimate from the block ratios; None where a workload has fewer than two blocks."""
    if not workloads or any(len(one.log_ratios) < 2 for one in workloads):
        return None
    means, squares = [], []
    for one in workloads:
        count = len(one.log_ratios)
        mean = math.fsum(one.log_ratios) / count
        means.append(mean)
        squares.append(math.fsum((value - mean) ** 2 for value in one.log_ratios) / (count - 1) / count)
    return Estimate(math.fsum(means) / len(means), math.sqrt(math.fsum(squares)) / len(means))


def spread_between(pairs: Iterable[tuple[Estimate, Estimate]]) -> Spread:
    """The deviation between sessions, from pairs of measurements of the same candidate."""
    excess = [((second.mean - first.mean) ** 2 - first.error**2 - second.error**2) / 2 for first, second in pairs]
    if len(excess) < FEWEST_PAIRS:
        return Spread(WITHOUT_PAIRS, 0)
    return Spread(math.sqrt(max(math.fsum(excess) / len(excess), _LEAST**2)), len(excess))


def prediction_interval(recorded: Estimate, error: float, spread: Spread, *, together: int = 1) -> tuple[float, float]:
    """Where the speed-up of a new measurement lies with 95 % probability, if the recorded one is honest.

    Args:
        recorded: what the ledger says.
        error: the new measurement's own standard error.
        spread: between sessions.
        together: of so many comparisons all shall hold with 95 % (Bonferroni).
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import, and only an audit needs it

    freedom = float(spread.pairs) if spread.pairs else _LARGE
    half = float(stdtrit(freedom, 1 - 0.025 / together)) * math.sqrt(
        recorded.error**2 + error**2 + 2 * spread.deviation**2
    )
    return math.exp(recorded.mean - half), math.exp(recorded.mean + half)
