"""Bounds of problems written by hand at the sizes of production models, compared with arithmetic by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.formats.problems import DEFINITION_NAME, list_problems, load_problem
from harness.model.problem import Problem, Workload
from harness.sol import tensor_values
from harness.sol.roofline import bounds
from harness.sol.targets import hardware
from tests.sol.cases import BF16, FP4, FP8, INT8

pytestmark = pytest.mark.xdist_group("bounds")  # torch loads its operators without values once

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"
KEYS = [
    key for key in list_problems(PROBLEMS) if "x_origin" in json.loads((PROBLEMS / key / DEFINITION_NAME).read_text())
]
Sizes = dict[str, int]


@dataclass(frozen=True)
class _Expected:
    """Bytes, and operations of products by the dtypes of both operands."""

    bytes: int
    products: dict[tuple[str, str], int] = field(default_factory=dict)


def linear(s: Sizes, x: float, weight: float, scales: int, pair: tuple[str, str]) -> _Expected:
    """Bytes of an element of x and of the weight, the scales' bytes, and a result in bf16."""
    t, k, n = s["tokens"], s["in_features"], s["out_features"]
    return _Expected(int(t * k * x + n * k * weight) + scales + 2 * t * n, {pair: 2 * t * k * n})


def fp8_blocks(s: Sizes) -> _Expected:
    scales = 4 * (s["tokens"] * s["in_features"] // 128 + s["in_features"] * s["out_features"] // 128**2)
    return linear(s, 1, 1, scales, (FP8, FP8))


def int8_dynamic(s: Sizes) -> _Expected:
    return linear(s, 2, 1, 4 * s["out_features"], (INT8, INT8))


def int4_gptq(s: Sizes) -> _Expected:
    return linear(s, 2, 0.5, 2 * s["in_features"] * s["out_features"] // 128, (BF16, FP4))


def nvfp4(s: Sizes) -> _Expected:
    scales = (s["tokens"] + s["out_features"]) * s["in_features"] // 16 + 4
    return linear(s, 0.5, 0.5, scales, (FP4, FP4))


def quantise_groups(s: Sizes) -> _Expected:
    """bf16 in, one byte and a 128th of four out."""
    elements = s["tokens"] * s["hidden"]
    return _Expected(2 * elements + elements + 4 * elements // 128)


def add_rmsnorm(s: Sizes) -> _Expected:
    """Two inputs and two outputs in bf16, and the weight."""
    return _Expected(2 * (4 * s["tokens"] * s["hidden"] + s["hidden"]))


def merge_two(s: Sizes) -> _Expected:
    """Three tensors in bf16, three logarithms in float32."""
    rows = s["tokens"] * s["heads"]
    return _Expected(3 * rows * (2 * s["head_dim"] + 4))


def kv_cache_write(s: Sizes) -> _Expected:
    """Keys and values are read and written; a slot number for each token."""
    return _Expected(s["tokens"] * (2 * 2 * 2 * s["kv_heads"] * s["head_dim"] + 4))


def unpermute(s: Sizes) -> _Expected:
    """Results of all pairs, the shared expert's and the output in bf16; a row number and a weight for each pair.

    The weighted sum is a sum of products, in which the fewer weights count as scales.
    """
    pairs = s["tokens"] * s["top_k"]
    return _Expected(2 * s["hidden"] * (pairs + 2 * s["tokens"]) + 8 * pairs, {(BF16, BF16): 2 * pairs * s["hidden"]})


BY_HAND: dict[str, Callable[[Sizes], _Expected]] = {
    "attention/kv_cache_write": kv_cache_write,
    "attention/merge_two_states": merge_two,
    "llm/add_rmsnorm": add_rmsnorm,
    "moe/unpermute_tokens": unpermute,
    "quantised/fp8_block_scaled_linear": fp8_blocks,
    "quantised/int4_gptq_linear": int4_gptq,
    "quantised/int8_linear_dynamic": int8_dynamic,
    "quantised/nvfp4_linear": nvfp4,
    "quantised/quantise_fp8_groups": quantise_groups,
}


@pytest.mark.parametrize("selection", ["some", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", sorted(BY_HAND))
def test_bounds_are_those_computed_by_hand(key: str, selection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_values, "MOST_SECONDS", 100.0)  # the load of the machine must not fail the test
    problem, machine = load_problem(PROBLEMS / key, key=key), hardware("h200")
    for workload in problem.workloads if selection == "all" else (problem.workloads[0], problem.workloads[-1]):
        result, expected = bounds(problem, workload, machine), BY_HAND[key](problem.sizes(workload))
        assert result.bytes == expected.bytes
        assert {pair: count for pair, count in result.products.items() if count} == expected.products
        assert math.isclose(result.times_us["memory"], expected.bytes / machine.bandwidth_gbs / 1e3)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_the_smallest_and_the_largest_workload_have_a_bound(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_values, "MOST_SECONDS", 100.0)
    problem = load_problem(PROBLEMS / key, key=key)
    by_bytes = sorted(problem.workloads, key=lambda workload: _bytes(problem, workload))
    for workload in (by_bytes[0], by_bytes[-1]):
        result = bounds(problem, workload, hardware("h200"))
        assert 0.0 <= result.floor_us <= result.sol_us
        assert result.sol_us > 0.0


def _bytes(problem: Problem, workload: Workload) -> int:
    sizes = problem.sizes(workload)
    return sum(problem.nbytes(spec, sizes) for spec in problem.definition.inputs.values())
