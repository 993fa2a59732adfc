from __future__ import annotations

import math

import pytest

from harness.judge.baseline_slowdown import slowed_by

ALONE = (100.0, 101.0, 99.0, 100.5, 99.5, 100.0)


def test_a_baseline_that_is_slower_beside_a_candidate_shows() -> None:
    beside = [140.0, 141.0, 139.0, 140.5]
    assert slowed_by(ALONE, beside) == pytest.approx(math.log(1.4), rel=0.01)


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param([101.0, 102.0, 100.0, 101.5], id="below-3-percent"),
        pytest.param([100.0, 180.0, 95.0, 110.0], id="within-its-own-noise"),
        pytest.param([70.0, 71.0, 70.5, 70.0], id="faster"),
        pytest.param([140.0], id="one-block"),
    ],
)
def test_noise_and_a_faster_baseline_do_not(beside: list[float]) -> None:
    assert slowed_by(ALONE, beside) == 0.0


def test_a_baseline_that_was_not_timed_alone_has_no_slowdown() -> None:
    assert slowed_by((), [140.0, 141.0]) == 0.0
