"""The geometric mean: its value, and the inputs that have none."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model.interval import geometric_mean

TIMES = st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1, max_size=30)


@given(TIMES)
def test_it_is_the_standard_library_s(times: list[float]) -> None:
    assert geometric_mean(iter(times)) == pytest.approx(statistics.geometric_mean(times), rel=1e-9)


@given(TIMES)
def test_it_is_between_the_smallest_and_the_largest(times: list[float]) -> None:
    assert min(times) * (1 - 1e-12) <= geometric_mean(times) <= max(times) * (1 + 1e-12)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [2.0, -1.0]])
def test_what_has_no_geometric_mean_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"not defined|math domain error|positive"):
        geometric_mean(values)
