"""The facts of problems from which a policy decides, from the ledger's standings."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

from harness.ledger.standings import Standing
from harness.model.config import PolicyConfig
from harness.planner.decision import ProblemFacts


def problem_facts(standing: Standing, recent: Sequence[str], policy: PolicyConfig) -> ProblemFacts:
    """Return the facts of a problem.

    Args:
        recent: times at which the run's last evaluations on all problems were entered, ascending.
    """
    best = standing.champion or standing.best
    gains = [(gain.evaluation, gain.speedup) for gain in standing.gains]
    return ProblemFacts(
        problem=standing.problem,
        evaluations=standing.evaluations,
        failures=standing.evaluations - standing.verdicts.get("PASSED", 0),
        duplicates=standing.duplicates + standing.near_duplicates,
        speedup=best.speedup if best else None,
        score=best.score if best else None,
        since_gain=standing.since_gain,
        recent_gain=recent_gain(gains, standing.evaluations, policy.stale_after),
        gains=len(gains),
        half_gain=recent_gain(gains, standing.evaluations, (standing.evaluations + 1) // 2),
        cost_s=round(standing.cost_s, 3),
        elsewhere=len(recent) - bisect_right(recent, standing.last_at) if standing.last_at else 0,
    )


def recent_gain(gains: Sequence[tuple[int, float]], evaluations: int, window: int) -> float:
    """Return ln of the speed-up gained over the last `window` evaluations of a problem.

    Args:
        gains: (number of evaluations then, speed-up) of each gain, oldest first.
        evaluations: present number of the problem's evaluations.
        window: number of the last evaluations that count.
    """
    if not gains:
        return 0.0
    before = bisect_right(gains, evaluations - window, key=itemgetter(0))
    start = gains[before - 1][1] if before else min(1.0, gains[0][1])
    return round(math.log(gains[-1][1] / start), 6)
