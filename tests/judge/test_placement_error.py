"""The error from a finite number of placements, computed from readings with given variances."""

from __future__ import annotations

import math
import random
import statistics

from harness.judge.clock import placement_error, placement_variance
from harness.judge.devices.interface import Reading

PLACEMENTS, BATCHES, CALLS = 16, 60, 8


def batches(generator: random.Random, placement_deviation: float, call_deviation: float) -> list[list[Reading]]:
    """Return readings of about 100 us, with a random level for each placement and each batch."""
    levels = [generator.gauss(0, placement_deviation) for _ in range(PLACEMENTS)]
    readings = []
    for _ in range(BATCHES):
        drift = generator.gauss(0, 0.05)
        chosen = generator.sample(range(PLACEMENTS), CALLS)
        logs = [levels[place] + drift + generator.gauss(0, call_deviation) for place in chosen]
        readings.append(
            [Reading(round(1e9 * math.exp(log)), 0, place) for log, place in zip(logs, chosen, strict=True)]
        )
    return readings


def test_the_variance_between_placements_is_separate_from_drift_and_noise() -> None:
    generator = random.Random(1)
    variances = [PLACEMENTS * placement_variance(batches(generator, 0.02, 0.01)) for _ in range(60)]
    assert 0.8 * 0.02**2 < statistics.fmean(variances) < 1.2 * 0.02**2


def test_equal_placements_add_nearly_nothing() -> None:
    generator = random.Random(2)
    deviations = [math.sqrt(PLACEMENTS * placement_variance(batches(generator, 0.0, 0.01))) for _ in range(20)]
    assert statistics.fmean(deviations) < 0.001


def test_the_errors_of_both_sides_add_up() -> None:
    generator = random.Random(3)
    sides = [batches(generator, 0.02, 0.01) for _ in range(2)]
    total = sum(placement_variance(side) for side in sides)
    assert math.isclose(placement_error(sides), math.sqrt(total))


def test_too_few_calls_for_each_placement_give_no_variance() -> None:
    generator = random.Random(4)
    assert placement_variance(batches(generator, 0.02, 0.01)[:3]) == 0.0
    assert placement_variance([]) == 0.0
    assert placement_variance([[Reading(100, 0, 0)]] * 10) == 0.0, "batches of one call have no deviations"
