"""The worlds: each gives the published figures with even attempts, and they differ in ways that affect a policy."""

from __future__ import annotations

import math
import random
from dataclasses import fields
from statistics import mean, median

import pytest

from harness.simulation.engine import DEVELOPMENT_SEEDS, HELD_OUT_SEEDS
from harness.simulation.published import PROBLEMS, PUBLISHED, SAMPLING_ERROR, ResultFigures, figures
from harness.simulation.worlds import WORLDS, SimulatedProblem, spread_evenly

EVEN_ATTEMPTS = 520
NAMES = tuple(field.name for field in fields(ResultFigures))


def test_development_and_held_out_seeds_are_distinct() -> None:
    assert not set(DEVELOPMENT_SEEDS) & set(HELD_OUT_SEEDS)
    assert len(HELD_OUT_SEEDS) == 20
    assert min(*DEVELOPMENT_SEEDS, *HELD_OUT_SEEDS) >= 0, "negative seeds are for the fit of the worlds"


def test_the_figures_of_a_known_run() -> None:
    """Four problems with a bound of 4x: no pass, slower, 1.6x, 3x."""
    bound = math.log(4.0)
    result = figures([-math.inf, math.log(0.5), math.log(1.6), math.log(3.0)], [bound] * 4)
    assert result.geometric_mean == pytest.approx((1.6 * 3.0) ** 0.25)
    assert (result.faster, result.above_2x) == (0.5, 0.25)
    half = 1 / (1 + (1 / 1.6 - 0.25) / 0.75)
    assert result.median_score == pytest.approx((0.5 + half) / 2)


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_ends_at_the_published_figures_when_attempts_are_spread_evenly(name: str) -> None:
    """Mean of six realisations, on seeds that no constant was fitted with, within the published sampling error."""
    runs = []
    for seed in DEVELOPMENT_SEEDS[:6]:
        problems = WORLDS[name].problems(PROBLEMS, seed)
        runs.append(figures(spread_evenly(problems, EVEN_ATTEMPTS), [problem.headroom for problem in problems]))
    for figure in NAMES:
        simulated = mean(getattr(run, figure) for run in runs)
        assert abs(simulated - getattr(PUBLISHED, figure)) <= getattr(SAMPLING_ERROR, figure), (figure, simulated)


@pytest.mark.parametrize("name", WORLDS)
def test_no_solution_is_faster_than_the_bound(name: str) -> None:
    problems = WORLDS[name].problems(60, 1)
    best = spread_evenly(problems, 300)
    assert all(reached < problem.headroom for reached, problem in zip(best, problems, strict=True))


def tried(problem: SimulatedProblem, attempts: int) -> list[float | None]:
    return [problem.attempt(problem.rng) for _ in range(attempts)]


@pytest.mark.parametrize("name", ["diminishing", "breakthroughs"])
def test_a_problem_has_the_same_luck_whatever_is_tried_before_it(name: str) -> None:
    alone, after = WORLDS[name].problems(20, 5), WORLDS[name].problems(20, 5)
    for problem in after[:7]:
        tried(problem, 50)
    assert tried(alone[7], 100) == tried(after[7], 100)
    other_seed = WORLDS[name].problems(20, 6)
    assert tried(alone[8], 100) != tried(other_seed[8], 100)


def test_families_learn_from_their_own_problems_only() -> None:
    """Work on the other problems of a family makes attempts on one of it pass more often; work elsewhere does not."""

    def passed(trained: bool | None) -> int:
        problems = WORLDS["families"].problems(PROBLEMS, 3)
        subject = problems[0]
        family = subject.key.partition("/")[0]
        if trained is not None:
            group = [problem for problem in problems[1:] if (problem.key.partition("/")[0] == family) is trained]
            for problem in group:
                tried(problem, 400)
        rng = random.Random(9)
        return sum(subject.attempt(rng) is not None for _ in range(2000))

    untrained = passed(None)
    assert passed(trained=False) == untrained
    assert passed(trained=True) > 1.3 * untrained


def largest_share(name: str) -> float:
    """Return the median share of the largest gain in a problem's gains after its first 20 attempts."""
    shares = []
    for problem in WORLDS[name].problems(PROBLEMS, 4):
        best = max((reached for reached in tried(problem, 20) if reached is not None), default=-math.inf)
        gains = []
        for reached in tried(problem, 500):
            if reached is not None and reached > best:
                gains += [reached - best] if math.isfinite(best) else []
                best = reached
        shares += [max(gains) / sum(gains)] if gains else []
    return median(shares)


def test_gains_are_small_steps_in_one_world_and_leaps_in_another() -> None:
    assert largest_share("diminishing") < 0.2
    assert largest_share("breakthroughs") > 0.35
