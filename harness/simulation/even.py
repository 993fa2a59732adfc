"""Attempts spread evenly over the problems, without a clock: what the worlds are fitted with."""

from __future__ import annotations

from collections.abc import Sequence

from harness.simulation.problems import SimulatedProblem


def spread_evenly(problems: Sequence[SimulatedProblem], attempts_each: int) -> list[float]:
    """Make the attempts on each problem, in turn; return ln of each best speed-up, -inf where none passed."""
    best = [float("-inf")] * len(problems)
    for _ in range(attempts_each):
        for number, problem in enumerate(problems):
            log_speedup = problem.attempt(problem.rng)
            if log_speedup is not None and log_speedup > best[number]:
                best[number] = log_speedup
    return best
