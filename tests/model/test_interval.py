"""Intervals contain the true value at their nominal rate, also with adaptive stopping."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from harness.model.interval import (
    FIRST_BLOCKS,
    MAX_BLOCKS,
    SetupError,
    blocks_needed,
    stopped_interval,
    summarise,
    summary_interval,
    workload_interval,
)
from harness.model.judging import WorkloadResult
from harness.model.verdict import Verdict

Blocks = npt.NDArray[np.float64]

_RUNS = 6000
_ratios = st.lists(st.floats(-3, 3), min_size=2, max_size=40)


def stop_adaptively(blocks: Blocks, half_width: float) -> tuple[Blocks, Blocks, npt.NDArray[np.int64]]:
    """Return mean, half-width and blocks of many runs, by the rules of `blocks_needed` and `stopped_interval`."""
    count = np.arange(1, blocks.shape[1] + 1)
    mean = np.cumsum(blocks, axis=1) / count
    variance = (np.cumsum(blocks**2, axis=1) - count * mean**2) / np.maximum(count - 1, 1)
    half = stdtrit(np.maximum(count - 1, 1), 0.98) * np.sqrt(np.maximum(variance, 0) / count)
    narrow = half <= math.log1p(half_width)
    narrow[:, : FIRST_BLOCKS - 1] = False
    narrow[:, -1] = True
    stop = narrow.argmax(axis=1)
    runs = np.arange(len(blocks))
    return mean[runs, stop], half[runs, stop], stop + 1


def noise(kind: str, spread: float, rng: np.random.Generator) -> tuple[Blocks, float]:
    """Return the log ratios of many runs, and their true mean."""
    shape = (_RUNS, MAX_BLOCKS)
    unit = rng.normal(0, 1, shape)
    if kind == "contaminated":
        unit = np.where(rng.random(shape) < 0.05, unit * 5, unit)
    if kind == "spikes":
        unit += 6.0 * (rng.random(shape) < 0.03)
    return 0.4 + spread * unit, 0.4 + spread * (0.18 if kind == "spikes" else 0.0)


@pytest.mark.parametrize("spread", [0.02, 0.033, 0.04, 0.057, 0.1, 0.2])
def test_adaptive_stopping_keeps_the_coverage(spread: float) -> None:
    blocks, truth = noise("normal", spread, np.random.default_rng(7))
    mean, half, _ = stop_adaptively(blocks, 0.02)
    assert 0.93 <= np.mean(np.abs(mean - truth) <= half) <= 0.97


@pytest.mark.parametrize(("kind", "min_coverage"), [("contaminated", 0.94), ("spikes", 0.915)])
@pytest.mark.parametrize("spread", [0.03, 0.05, 0.08])
def test_heavy_tails_cost_little_coverage(kind: str, min_coverage: float, spread: float) -> None:
    blocks, truth = noise(kind, spread, np.random.default_rng(11))
    mean, half, _ = stop_adaptively(blocks, 0.02)
    assert min_coverage <= np.mean(np.abs(mean - truth) <= half) <= 0.97


def test_a_plain_interval_has_too_little_coverage() -> None:
    """The same stopping with the plain 95 % interval covers less than 94.5 %, so the quantile is that of 96 %."""
    blocks, truth = noise("normal", 0.05, np.random.default_rng(7))
    count = np.arange(1, MAX_BLOCKS + 1)
    mean = np.cumsum(blocks, axis=1) / count
    variance = (np.cumsum(blocks**2, axis=1) - count * mean**2) / np.maximum(count - 1, 1)
    half = stdtrit(np.maximum(count - 1, 1), 0.975) * np.sqrt(np.maximum(variance, 0) / count)
    narrow = half <= math.log1p(0.02)
    narrow[:, : FIRST_BLOCKS - 1] = False
    stop = narrow.argmax(axis=1)
    runs = np.arange(_RUNS)
    assert np.mean(np.abs(mean[runs, stop] - truth) <= half[runs, stop]) < 0.945


def test_the_simulation_stops_like_the_function() -> None:
    blocks, _ = noise("normal", 0.04, np.random.default_rng(3))
    means, halves, counts = stop_adaptively(blocks[:40], 0.02)
    for run, mean, half, count in zip(blocks, means, halves, counts, strict=False):
        kept_ratios: list[float] = []
        while len(kept_ratios) < blocks_needed(kept_ratios, 0.02):
            kept_ratios.append(float(run[len(kept_ratios)]))
            if len(kept_ratios) >= FIRST_BLOCKS and blocks_needed(kept_ratios, 0.02) == len(kept_ratios):
                break
        assert len(kept_ratios) == count
        assert stopped_interval(kept_ratios) == pytest.approx((mean, half), rel=1e-6)


def test_the_summary_of_stopped_workloads_keeps_the_coverage() -> None:
    rng = np.random.default_rng(5)
    hits, runs = 0, 400
    for _ in range(runs):
        truths = rng.normal(0.3, 0.5, 6)
        spreads = rng.choice([0.01, 0.03, 0.05], 6)
        workloads = []
        for truth, spread in zip(truths, spreads, strict=True):
            blocks = truth + spread * rng.normal(0, 1, (1, MAX_BLOCKS))
            _, _, count = stop_adaptively(blocks, 0.02)
            workloads.append(blocks[0, : count[0]].tolist())
        _, (lower, upper) = summary_interval(workloads)
        hits += lower <= math.exp(truths.mean()) <= upper
    assert 0.92 <= hits / runs <= 0.985  # 400 runs: two standard errors are 2.2 %


@given(_ratios)
def test_the_speedup_is_in_its_interval(ratios: list[float]) -> None:
    speedup, (lower, upper) = workload_interval(ratios)
    assert lower <= speedup <= upper
    assert speedup == pytest.approx(math.exp(sum(ratios) / len(ratios)))


@given(st.lists(st.floats(-3, 3), max_size=60), st.floats(1e-3, 0.5), st.integers(12, 400))
def test_blocks_needed_is_between_the_measured_blocks_and_the_maximum(
    ratios: list[float], half_width: float, max_blocks: int
) -> None:
    block_count = blocks_needed(ratios, half_width, max_blocks=max_blocks)
    assert FIRST_BLOCKS <= block_count <= max(max_blocks, len(ratios))
    assert block_count >= min(len(ratios), max_blocks)


def test_equal_blocks_have_an_interval_of_no_width() -> None:
    assert workload_interval([0.5] * 12)[1] == (math.exp(0.5), math.exp(0.5))
    assert summary_interval([[0.5] * 12] * 3)[1] == pytest.approx((math.exp(0.5), math.exp(0.5)))


def test_one_workload_summarises_to_its_own_interval() -> None:
    ratios = [0.1, 0.2, 0.15, 0.3]
    assert summary_interval([ratios])[1] == pytest.approx(workload_interval(ratios)[1])


def test_errors_of_the_setup_keep_the_coverage() -> None:
    """An error that is drawn once per evaluation or per workload shifts all of its blocks equally."""
    rng = np.random.default_rng(7)
    setup, runs = SetupError(placement=0.004, process=0.006), 1000
    covered_by_first = covered_by_mean = 0
    for _ in range(runs):
        process = rng.normal(0, setup.process)
        workloads = [
            (0.3 + process + rng.normal(0, setup.placement) + 0.01 * rng.normal(0, 1, FIRST_BLOCKS)).tolist()
            for _ in range(5)
        ]
        _, (lower, upper) = workload_interval(workloads[0], setup)
        covered_by_first += lower <= math.exp(0.3) <= upper
        _, (lower, upper) = summary_interval(workloads, [setup] * 5)
        covered_by_mean += lower <= math.exp(0.3) <= upper
    assert 0.94 <= covered_by_first / runs <= 0.99
    assert 0.94 <= covered_by_mean / runs <= 0.99


def test_the_processes_error_does_not_shrink_with_the_number_of_workloads() -> None:
    ratios = [0.5] * FIRST_BLOCKS
    for count in (1, 20):
        _, (lower, upper) = summary_interval([ratios] * count, [SetupError(process=0.01)] * count)
        assert 0.018 < math.log(upper / lower) / 2 < 0.022


def test_one_workload_with_errors_of_its_setup_summarises_to_its_own_interval() -> None:
    ratios, setup = [0.1, 0.2, 0.15, 0.3], SetupError(placement=0.02, process=0.03)
    assert summary_interval([ratios], [setup])[1] == pytest.approx(workload_interval(ratios, setup)[1])


def test_one_value_is_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two values, not 1"):
        workload_interval([0.1])


def _workload(uuid: str, verdict: Verdict = Verdict.PASSED, **fields: object) -> WorkloadResult:
    return WorkloadResult.model_validate({"uuid": uuid, "verdict": verdict, **fields})


def test_a_failed_workload_leaves_counts_only() -> None:
    summary = summarise(
        [
            _workload("a", speedup=2.0, log_ratios=(0.7, 0.7), score=0.9),
            _workload("b", Verdict.INCORRECT_NUMERICAL, reason="off"),
        ]
    )
    assert summary.model_dump() == {"speedup": None, "speedup_ci95": None, "score": None, "passed": 1, "of": 2}


def test_the_summary_is_geometric_in_speedups_and_arithmetic_in_scores() -> None:
    two, eight = math.log(2), math.log(8)
    summary = summarise(
        [
            _workload("a", speedup=2.0, log_ratios=(two - 0.01, two + 0.01), score=0.4),
            _workload("b", speedup=8.0, log_ratios=(eight - 0.01, eight + 0.01), score=0.8),
            _workload("c", speedup=4.0, log_ratios=(math.log(4), math.log(4)), score=None),
        ]
    )
    assert summary.speedup == pytest.approx(4.0)
    assert summary.score == pytest.approx(0.6)
    assert summary.speedup_ci95 is not None
    assert summary.speedup_ci95[0] < 4.0 < summary.speedup_ci95[1]


def test_the_module_imports_without_scipy() -> None:
    code = "import sys, harness.model.interval; sys.exit('scipy' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
