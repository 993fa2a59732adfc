from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.correctness import Summed, all_finite, compare, compare_all, summed
from harness.judge.native import load_native
from harness.model.problem import Tolerance
from harness.model.verdict import Verdict

STRICT = Tolerance(max_atol=1e-5, max_rtol=1e-5)


def _wrong(expected: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance = STRICT, **options: Any) -> str:
    comparison = compare(expected, actual, tolerance, **options)
    assert comparison.verdict is Verdict.INCORRECT_NUMERICAL
    assert comparison.reason is not None
    return comparison.reason


def test_equal_and_nearly_equal_outputs_pass_with_their_errors() -> None:
    expected = torch.randn(300, 1000)
    assert compare(expected, expected.clone(), STRICT).max_abs_error == 0.0
    comparison = compare(expected, expected + 5e-6, STRICT)
    assert comparison.passed
    assert comparison.matched == 1.0
    assert comparison.max_abs_error == pytest.approx(5e-6, rel=0.1)
    assert comparison.max_rel_error == pytest.approx(float((5e-6 / expected.abs().clamp_min(1e-5)).max()), rel=0.2)
    assert comparison.rms_error == pytest.approx(5e-6, rel=0.1)


def test_the_bound_is_atol_plus_rtol_times_expected() -> None:
    tolerance = Tolerance(max_atol=0.5, max_rtol=0.25, required_matched_ratio=1.0)
    expected = torch.tensor([2.0, -2.0, 0.0])
    assert compare(expected, torch.tensor([3.0, -3.0, 0.5]), tolerance).passed
    reason = _wrong(expected, torch.tensor([3.0, -3.01, 0.5]), tolerance)
    assert "66.6667% of elements are within 0.5 + 0.25 * |expected|, 100.0000% required" in reason
    assert "at [1]: -3.00999999, expected -2" in reason


def test_the_matched_ratio_allows_small_errors_and_the_first_beyond_it_is_reported() -> None:
    expected = torch.randn(100, 100)
    actual = expected.clone()
    actual.view(-1)[:100] += 1e-4
    tolerance = Tolerance(max_atol=1e-5, max_rtol=1e-5, required_matched_ratio=0.99)
    comparison = compare(expected, actual, tolerance)
    assert comparison.passed
    assert comparison.matched == pytest.approx(0.99)
    actual.view(-1)[5000] += 1e-4
    assert "at [0, 0]: " in _wrong(expected, actual, tolerance)


def test_one_percent_of_skipped_elements_fails() -> None:
    """The rule of SOL-ExecBench accepts this, because 99 % match. The judge's reason names the violated rule."""
    expected = torch.randn(100, 1000)
    actual = expected.clone()
    actual[:, -9:] = 0.0
    reason = _wrong(expected, actual)
    assert "root mean square error" in reason
    assert "our rule" in reason
    assert compare(expected, actual, Tolerance(max_atol=1.0, max_rtol=1.0)).passed


def test_one_element_that_is_not_finite_or_not_written_fails() -> None:
    expected = torch.randn(1000, 100)
    for value in (math.nan, math.inf, -math.inf):
        actual = expected.clone()
        actual[999, 99] = value
        comparison = compare(expected, actual, Tolerance())
        assert comparison.verdict is Verdict.INCORRECT_NUMERICAL
        assert comparison.reason is not None
        assert "1 values are not finite (or were not written); at [999, 99]" in comparison.reason
        assert comparison.max_abs_error == math.inf


def test_nan_counts_as_a_mismatch() -> None:
    actual = torch.tensor([1.0, 1.0, math.nan, 1.0])
    assert compare(torch.ones(4), actual, Tolerance()).matched == 0.75


def test_poison_shows_in_every_float_dtype() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        expected = torch.randn(64).to(dtype)
        actual = expected.clone()
        actual.view(torch.uint8)[-dtype.itemsize :] = 0xFF
        assert "not written" in _wrong(expected, actual, Tolerance(max_atol=100.0))


def test_minus_infinity_only_where_it_is_allowed_and_expected() -> None:
    expected = torch.tensor([0.0, -math.inf, 1.0])
    allowed = Tolerance(allow_negative_inf=True, required_matched_ratio=1.0)
    assert compare(expected, expected.clone(), allowed).passed
    assert "not finite" in _wrong(expected, torch.tensor([-math.inf, -math.inf, 1.0]), allowed)
    assert not compare(expected, torch.tensor([0.0, -5.0, 1.0]), allowed).passed
    assert not compare(expected, torch.tensor([0.0, math.inf, 1.0]), allowed).passed
    assert compare(expected, expected.clone(), Tolerance()).verdict is Verdict.INVALID_REFERENCE
    assert all_finite({"y": expected}, allowed)
    assert not all_finite({"y": expected}, Tolerance())
    assert all_finite({"y": torch.tensor([1, 2])}, Tolerance())


def test_all_zero_is_wrong_unless_zero_is_expected() -> None:
    tiny = torch.full((10,), 1e-6)
    reason = _wrong(tiny, torch.zeros(10))
    assert "all zero; the expected output is not" in reason
    assert compare(torch.zeros(10), torch.zeros(10), STRICT).passed
    assert compare(tiny, torch.zeros(10), STRICT, zero_is_wrong=False).passed
    expected = torch.zeros(1000)
    expected[0] = 1.0
    assert "all zero" in _wrong(expected, torch.zeros(1000), Tolerance(max_atol=0.1))


def test_the_error_cap_holds_for_every_element() -> None:
    expected = torch.zeros(1000) + 1
    actual = expected.clone()
    actual[3] += 0.015
    tolerance = Tolerance(max_atol=1e-2, max_rtol=0.0, max_error_cap=0.014)
    assert "error 0.015 is above the cap 0.014; at [3]: 1.01499999, expected 1" in _wrong(expected, actual, tolerance)
    within = Tolerance(max_atol=1e-1, max_rtol=0.0, max_error_cap=0.014)
    assert "above the cap" in _wrong(expected, actual, within)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.bool])
def test_integers_and_booleans_are_exact(dtype: torch.dtype) -> None:
    expected = torch.arange(1000).remainder(2).to(dtype).view(10, 100)
    assert compare(expected, expected.clone(), Tolerance(max_atol=5.0)).passed
    actual = expected.clone()
    actual[9, 99] = 0
    assert "must be exact (our rule" in _wrong(expected, actual, Tolerance(max_atol=5.0))
    assert "1 of 1000 differ, first at [9, 99]" in _wrong(expected, actual)


def test_a_bool_output_is_compared_by_its_bytes() -> None:
    expected = torch.tensor([True, False])
    assert compare(expected, torch.tensor([1, 0], dtype=torch.uint8), STRICT).passed
    assert "must be exact" in _wrong(expected, torch.tensor([0xA5, 0], dtype=torch.uint8))


def test_packed_four_bit_floats_are_compared_as_numbers() -> None:
    expected = torch.tensor([0x21, 0x43], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert compare(expected, expected.clone(), STRICT).passed
    negative_zero = torch.tensor([0x08], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    zero = torch.tensor([0x00], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert compare(zero, negative_zero, STRICT).passed
    wrong = torch.tensor([0x21, 0x53], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert "at [3]: 3, expected 2" in _wrong(expected, wrong)


def test_shape_and_dtype_have_verdicts_of_their_own() -> None:
    expected = torch.zeros(2, 3)
    assert compare(expected, torch.zeros(3, 2), STRICT).verdict is Verdict.INCORRECT_SHAPE
    comparison = compare(expected, torch.zeros(2, 3, dtype=torch.float64), STRICT, name="out")
    assert comparison.verdict is Verdict.INCORRECT_DTYPE
    assert comparison.reason == "output `out` is torch.float64; expected torch.float32"
    assert compare_all({"a": expected}, {}, STRICT).reason == "output `a` is missing"
    assert compare(torch.zeros(0, 4), torch.zeros(0, 4), STRICT).passed


def test_all_outputs_count_and_a_limit_on_precision_may_be_given() -> None:
    a, b = torch.randn(100), torch.randn(100)
    comparison = compare_all({"a": a, "b": b}, {"a": a + 1e-6, "b": b}, STRICT)
    assert comparison.passed
    assert comparison.max_abs_error > 0
    comparison = compare_all({"a": a}, {"a": a + 1e-6}, STRICT, rms_limits={"a": 1e-7})
    assert comparison.reason is not None
    assert "less precise than an honest implementation (our rule)" in comparison.reason


NUMBERS = st.floats(-1e4, 1e4, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30])


@pytest.fixture(scope="module")
def one_pass(judge_cache: Path) -> Summed:
    native = load_native(judge_cache)
    assert native is not None
    return native.summed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 15, 4096, 70_001])
def test_one_pass_has_the_result_of_torch(one_pass: Summed, dtype: torch.dtype, count: int) -> None:
    right = torch.randn(count).to(dtype)
    actual = (right.float() * (1 + 1e-2 * torch.randn(count))).to(dtype)
    for tolerance in (
        Tolerance(max_atol=1e-3, max_rtol=0.5),
        Tolerance(max_atol=0.0, max_rtol=0.5),
        Tolerance(max_atol=5),
    ):
        native, by_torch = one_pass(actual, right, tolerance), summed(actual, right, tolerance)
        assert (native.within, native.some_nonzero) == (by_torch.within, by_torch.some_nonzero)
        assert by_torch.within
        assert (native.max_abs, native.max_rel) == pytest.approx((by_torch.max_abs, by_torch.max_rel), rel=1e-6)
        assert (native.squared_error, native.squares) == pytest.approx(
            (by_torch.squared_error, by_torch.squares), rel=1e-4
        )
        for place in {0, count // 2, count - 1}:
            for bad in (math.nan, math.inf, 1e9):
                changed = actual.clone()
                changed[place] = bad
                assert not one_pass(changed, right, tolerance).within
    assert not one_pass(torch.zeros_like(right), right, tolerance).some_nonzero


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=60),
    st.sampled_from([0.0, 1e-5, 1e-2, 1.0]),
    st.sampled_from([0.0, 1e-5, 1e-2]),
    st.sampled_from([0.5, 0.9, 1.0]),
    st.booleans(),
)
def test_an_output_that_sol_execbench_rejects_never_passes(
    one_pass: Summed, pairs: list[tuple[float, float]], atol: float, rtol: float, ratio: float, native: bool
) -> None:
    """A direct implementation of SOL-ExecBench's rules accepts what the judge accepts, with equal figures."""
    expected, actual = (torch.tensor(side) for side in zip(*pairs, strict=True))
    error = (actual - expected).abs()
    exceeds = ~(error <= atol + rtol * expected.abs())
    matched = 1.0 - float(exceeds.sum()) / len(pairs)
    all_zero = not bool(actual.any()) and bool(expected.any())
    tolerance = Tolerance(max_atol=atol, max_rtol=rtol, required_matched_ratio=ratio)
    comparison = compare(expected, actual, tolerance, sums=one_pass if native else summed)
    if comparison.passed:
        assert bool(actual.isfinite().all())
        assert matched >= ratio
        assert not all_zero
        assert comparison.matched == pytest.approx(matched)
        assert comparison.max_abs_error == pytest.approx(float(error.max()))
    elif matched == 1.0:
        assert all_zero or not bool(expected.isfinite().all())


@pytest.mark.slow
@pytest.mark.serial
def test_four_megabytes_take_milliseconds() -> None:
    expected = [torch.randn(255, 4096) for _ in range(4)]
    actual = [value + 1e-7 for value in expected]
    fastest = math.inf
    for _ in range(5):
        for right, comparison in zip(expected, actual, strict=True):
            begin = time.perf_counter()
            assert compare(right, comparison, STRICT).passed
            fastest = min(fastest, time.perf_counter() - begin)
    assert fastest < 0.008
