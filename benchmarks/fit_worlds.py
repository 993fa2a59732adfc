"""Fit the worlds of the planner's simulation to the public result: `python -m benchmarks.fit_worlds [WORLD]`.

Attempts are spread evenly over the problems. Seeds are negative, so that no simulation uses them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from harness.simulation.published import PUBLISHED, SAMPLING_ERROR, ResultFigures, figures
from harness.simulation.worlds import WORLDS, Fitted, World, spread_evenly

ATTEMPTS_EACH = 520
"""Attempts at one problem in three weeks: 100 workers x 504 h / 24.7 min per attempt with settling / 235 problems."""
PROBLEMS = 940
SEEDS = (-1, -2, -3, -4)


def mean_figures(world: World, seeds: tuple[int, ...], problems: int) -> ResultFigures:
    """Return the mean of the figures over several realisations.

    Args:
        world: the world.
        seeds: seed of each realisation.
        problems: problems of each realisation.
    """
    runs = []
    for seed in seeds:
        drawn = world.problems(problems, seed)
        runs.append(figures(spread_evenly(drawn, ATTEMPTS_EACH), [problem.headroom for problem in drawn]))
    return ResultFigures(*(float(np.mean([getattr(run, name) for run in runs])) for name in _NAMES))


_NAMES = ("geometric_mean", "faster", "above_2x", "median_score")


def distance(simulated: ResultFigures) -> float:
    """Return the sum of squared differences from the published figures, in units of their sampling errors."""
    errors = [(getattr(simulated, name) - getattr(PUBLISHED, name)) / getattr(SAMPLING_ERROR, name) for name in _NAMES]
    return math.fsum(error**2 for error in errors)


def fit(world: World) -> World:
    """Return the world with the constants that come closest to the published figures."""

    def with_constants(logs: np.ndarray) -> World:
        values = [math.exp(value) for value in logs]
        return replace(world, fitted=Fitted(*values))

    start = world.fitted
    logs = np.log([start.headroom_median, start.headroom_sigma, start.deficit_mean, start.pace])
    simplex = np.vstack([logs, *(logs + 0.25 * np.eye(4)[row] for row in range(4))])
    answer = minimize(
        lambda point: distance(mean_figures(with_constants(point), SEEDS, PROBLEMS)),
        logs,
        method="Nelder-Mead",
        options={"maxfev": 60, "initial_simplex": simplex, "fatol": 0.02, "xatol": 0.02},
    )
    return with_constants(answer.x)


if __name__ == "__main__":
    for name in sys.argv[1:] or WORLDS:
        fitted = fit(WORLDS[name])
        print(name, fitted.fitted, mean_figures(fitted, (-11, -12, -13, -14, -15, -16, -17, -18), PROBLEMS), flush=True)
