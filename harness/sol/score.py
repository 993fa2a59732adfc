"""The score of one workload: where a latency lies between the baseline and the speed of light."""

from __future__ import annotations

import math


def score(latency_us: float, baseline_us: float, sol_us: float) -> float | None:
    """S = 1 / (1 + (T_k - T_sol) / (T_b - T_sol)): 0.5 at the baseline, 1 at the bound; None where there is no score.

    A latency below the bound scores above 1, up to the point where the formula breaks down; there the bound is wrong
    or the latency is, and None says so. `why_no_score` gives the reason.
    """
    if why_no_score(latency_us, baseline_us, sol_us) is not None:
        return None
    return 1.0 / (1.0 + (latency_us - sol_us) / (baseline_us - sol_us))


def why_no_score(latency_us: float, baseline_us: float, sol_us: float) -> str | None:
    """Why `score` is None for these times in microseconds; None when there is a score."""
    if not all(math.isfinite(value) and value > 0 for value in (latency_us, baseline_us, sol_us)):
        return "no score: latency, baseline and bound must be positive times"
    if baseline_us <= sol_us:
        return f"no score: the baseline ({baseline_us:.3g} us) is at or below the bound ({sol_us:.3g} us) already"
    if latency_us - sol_us <= sol_us - baseline_us:
        return (
            f"no score: {latency_us:.3g} us is further below the bound ({sol_us:.3g} us) than the baseline is above it"
        )
    return None
