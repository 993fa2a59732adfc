"""The prediction interval contains the result of a second session, and excludes a forged result."""

from __future__ import annotations

import math
import random

import pytest

from harness.model.sessions import (
    DEFAULT_DEVIATION,
    Estimate,
    Spread,
    estimate_of,
    prediction_interval,
    spread_between,
)
from tests.ledger.ledgers import workload


def session(rng: random.Random, truth: float, deviation: float, error: float) -> Estimate:
    return Estimate(math.log(truth) + rng.gauss(0, deviation) + rng.gauss(0, error), error)


def test_the_deviation_between_sessions_is_found_again() -> None:
    rng = random.Random(5)
    pairs = [(session(rng, 1.5, 0.02, 0.004), session(rng, 1.5, 0.02, 0.004)) for _ in range(400)]
    spread = spread_between(pairs)
    assert spread.pairs == 400
    assert spread.deviation == pytest.approx(0.02, rel=0.1)


def test_with_few_pairs_the_default_deviation_is_used() -> None:
    assert spread_between([(Estimate(0.0, 0.1), Estimate(0.0, 0.1))]) == Spread(DEFAULT_DEVIATION, 0)


def test_pairs_that_agree_too_well_leave_room_for_honest_ones() -> None:
    assert spread_between([(Estimate(0.1, 0.01), Estimate(0.1, 0.01))] * 20).deviation > 0


@pytest.mark.parametrize("comparisons", [1, 10])
def test_prediction_intervals_of_honest_reruns_have_their_coverage(comparisons: int) -> None:
    rng = random.Random(7)
    rounds, all_within = 400, 0
    for _ in range(rounds):
        pairs = [(session(rng, 1.3, 0.01, 0.005), session(rng, 1.3, 0.01, 0.005)) for _ in range(40)]
        spread = spread_between(pairs)
        within = 0
        for _ in range(comparisons):
            lower, upper = prediction_interval(session(rng, 1.3, 0.01, 0.005), 0.005, spread, comparisons=comparisons)
            within += lower <= math.exp(session(rng, 1.3, 0.01, 0.005).mean) <= upper
        all_within += within == comparisons
    assert 0.91 <= all_within / rounds <= 0.99


def test_a_recorded_speedup_a_tenth_too_high_is_outside_the_interval() -> None:
    lower, upper = prediction_interval(Estimate(math.log(1.65), 0.003), 0.003, Spread(0.01, 30))
    assert not lower <= 1.5 <= upper


def test_the_estimate_is_that_of_the_summary() -> None:
    workloads = [workload(1.5, seed=1), workload(1.2, seed=2)]
    estimate = estimate_of(workloads)
    assert estimate is not None
    speedup = math.sqrt((workloads[0].speedup or 0) * (workloads[1].speedup or 0))
    assert math.exp(estimate.mean) == pytest.approx(speedup)
    assert estimate.error == pytest.approx(0.01 / math.sqrt(24), rel=0.4)
    assert estimate_of([]) is None
