"""The score of a latency between the baseline and the bound."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sol.score import no_score_reason, score

times = st.floats(min_value=1e-2, max_value=1e7)


def test_half_at_the_baseline_and_one_at_the_bound() -> None:
    assert score(10.0, 10.0, 4.0) == 0.5
    assert score(4.0, 10.0, 4.0) == 1.0
    assert score(7.0, 10.0, 4.0) == pytest.approx(2 / 3)
    assert score(1e9, 10.0, 4.0) == pytest.approx(0.0, abs=1e-7)


def test_no_score_when_the_baseline_is_at_the_bound_already() -> None:
    assert score(4.0, 4.0, 4.0) is None
    assert score(3.0, 3.9, 4.0) is None
    assert no_score_reason(3.0, 3.9, 4.0) == "no score: the baseline (3.9 us) is at or below the bound (4 us)"


def test_no_score_where_the_formula_breaks_down() -> None:
    above = score(3.9, 10.0, 4.0)
    assert above is not None
    assert above > 1
    assert score(1.0, 6.0, 4.0) is None
    assert "further below the bound" in (no_score_reason(1.0, 6.0, 4.0) or "")


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_no_score_without_times(bad: float) -> None:
    for arguments in ((bad, 2.0, 1.0), (1.5, bad, 1.0), (1.5, 2.0, bad)):
        assert score(*arguments) is None
        assert "positive times" in (no_score_reason(*arguments) or "")


@given(times, times, times)
def test_faster_scores_higher(latency: float, baseline: float, sol: float) -> None:
    slow, fast = score(latency * 1.5, baseline, sol), score(latency, baseline, sol)
    if slow is not None and fast is not None:
        assert slow <= fast
        assert (fast >= 0.5) == (latency <= baseline) or fast == pytest.approx(0.5)


def test_score_hardware_and_roofline_load_without_torch() -> None:
    code = "import sys, harness.sol.score, harness.sol.hardware, harness.sol.roofline; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert answer.stdout.strip() == "False"
