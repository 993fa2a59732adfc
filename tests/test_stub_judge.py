"""The stub derives its figures from their parts exactly as the judge does; otherwise audits fail."""

from __future__ import annotations

import pytest

from harness.model.interval import summarise, workload_interval
from harness.model.judging import Summary, WorkloadResult
from tests.stub_judge import summary, workload


@pytest.mark.parametrize("count", [1, 2, 6])
def test_intervals_and_summary_are_those_of_the_real_formulas(count: int) -> None:
    rows = [workload(f"u{number}", 1.3, b"seed", "compile") for number in range(count)]
    results = [WorkloadResult.model_validate(row) for row in rows]
    for result in results:
        speedup, interval = workload_interval(result.log_ratios)
        assert result.speedup == pytest.approx(speedup, rel=1e-12)
        assert result.speedup_ci95 == pytest.approx(interval, rel=1e-12)
    expected, actual = summarise(results), Summary.model_validate(summary(rows))
    assert actual.speedup_ci95 == pytest.approx(expected.speedup_ci95, rel=1e-12)
    assert (actual.speedup, actual.score) == pytest.approx((expected.speedup, expected.score), rel=1e-12)
    assert (actual.passed, actual.of) == (expected.passed, expected.of)
