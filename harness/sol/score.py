"""The score of one workload: position of a latency between the baseline and the lower bound."""

from __future__ import annotations

import math


def score(latency_us: float, baseline_us: float, sol_us: float) -> float | None:
    """Return S = 1 / (1 + (T_k - T_sol) / (T_b - T_sol)), or None if there is no score.

    S is 0.5 at the baseline and 1 at the bound. A latency below the bound has a score above 1. For a latency so far
    below it that the formula is invalid, the bound or the latency is wrong, and there is no score. `no_score_reason`
    returns the reason.

    Args:
        latency_us: latency of the kernel, T_k.
        baseline_us: latency of the baseline, T_b.
        sol_us: lower bound, T_sol.
    """
    if no_score_reason(latency_us, baseline_us, sol_us) is not None:
        return None
    return 1.0 / (1.0 + (latency_us - sol_us) / (baseline_us - sol_us))


def no_score_reason(latency_us: float, baseline_us: float, sol_us: float) -> str | None:
    """Return the reason for which `score` is None; None if there is a score.

    Args:
        sol_us: lower bound.
    """
    if not all(math.isfinite(value) and value > 0 for value in (latency_us, baseline_us, sol_us)):
        return "no score: latency, baseline and bound must be positive times"
    if baseline_us <= sol_us:
        return f"no score: the baseline ({baseline_us:.3g} us) is at or below the bound ({sol_us:.3g} us)"
    if latency_us - sol_us <= sol_us - baseline_us:
        return (
            f"no score: {latency_us:.3g} us is further below the bound ({sol_us:.3g} us) than the baseline is above it"
        )
    return None
