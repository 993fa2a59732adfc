"""The bounds of `benchmarks.planner_bounds` on a small instance, and their parts."""

from __future__ import annotations

import pytest

from benchmarks.planner_bounds import _hull, bounds
from harness.simulation.engine import SimulationSettings
from harness.simulation.worlds import WORLDS

pytest.importorskip("simpy", reason="the extra kernel-harness[simulate] is not installed")

SMALL = SimulationSettings(problems=16, gpus=3, workers=6, hours=36.0)


def test_the_hull_of_a_trajectory_is_concave_and_ends_at_its_last_gain() -> None:
    steps = _hull(iter([(1.0, 0.1), (2.0, 0.5), (5.0, 0.6), (6.0, 1.0)]))
    assert steps == [(2.0, 0.5), (4.0, 0.5)]
    assert _hull(iter([])) == []


@pytest.mark.parametrize("world", WORLDS)
def test_a_planner_with_more_information_gains_more(world: str) -> None:
    result = bounds(world, 100, SMALL)
    assert 0.0 <= result.round_robin < result.oracle < result.clairvoyant
