"""Every workload of the shipped problems has the bounds that its shapes give by hand; `make test` takes two of each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.formats.problems import list_problems, load_problem
from harness.sol import tensor_values
from harness.sol.roofline import bounds
from harness.sol.targets import hardware
from tests.sol.cases import BF16, FP4, FP32

pytestmark = pytest.mark.xdist_group("bounds")  # torch loads its operators without values once

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"
Sizes = dict[str, int]


@dataclass(frozen=True)
class _Expected:
    """Bytes, and operations of products by the dtype of both operands."""

    bytes: int
    products: int = 0
    dtype: str = BF16


def gemm(s: Sizes) -> _Expected:
    m, n, k = s["m"], s["n"], s["k"]
    return _Expected(2 * (m * k + n * k + m * n), 2 * m * n * k)


def decoder_mlp(s: Sizes) -> _Expected:
    """x, residual and both outputs; the norm; gate and up of 2 x i rows, and down. 2 T h 2i + 2 T i h operations."""
    t, h, i = s["tokens"], s["hidden"], s["intermediate"]
    return _Expected(2 * (4 * t * h + h + 2 * i * h + h * i), 6 * t * h * i)


def rmsnorm_backward(s: Sizes) -> _Expected:
    """Two inner products of t x h: one over rows, one over columns."""
    t, h = s["tokens"], s["hidden"]
    return _Expected(2 * (3 * t * h + h) + 4 * (t + h), 4 * t * h)


def residual_rmsnorm_backward(s: Sizes) -> _Expected:
    r, h = s["rows"], s["hidden"]
    return _Expected(4 * (4 * r * h + 2 * h), 4 * r * h, FP32)


def rmsnorm(s: Sizes) -> _Expected:
    return _Expected(2 * (2 * s["rows"] * s["hidden"] + s["hidden"]))


def swiglu(s: Sizes) -> _Expected:
    return _Expected(2 * 3 * s["rows"] * s["intermediate"])


def adaln(s: Sizes) -> _Expected:
    b, t, h = s["batch"], s["tokens"], s["hidden"]
    return _Expected(4 * (2 * b * t * h + 2 * b * h))


def rope(s: Sizes) -> _Expected:
    t, heads = s["tokens"], s["q_heads"] + s["kv_heads"]
    return _Expected(4 * (2 * t * heads * s["head_dim"] + 2 * t * s["half_dim"]))


def causal_conv(s: Sizes) -> _Expected:
    """One filter of `width` taps for each channel, over an input that the reference pads itself."""
    b, c, length, width = s["batch"], s["channels"], s["length"], s["width"]
    return _Expected(4 * (2 * b * c * length + c * width + c), 2 * b * c * length * width, FP32)


def topk_routing(s: Sizes) -> _Expected:
    t, e, k = s["tokens"], s["num_experts"], s["top_k"]
    return _Expected(4 * (t * e + 2 * t * k + e))


def nvfp4_linear(s: Sizes) -> _Expected:
    """Two codes a byte, one scale of a byte for 16 of them, two scales of 4 B for all. Both operands have four bits."""
    t, h, e = s["tokens"], s["hidden"], s["expert2"]
    return _Expected(2 * t * h + e * h // 2 + e * h // 16 + 8 + 2 * t * e // 2, 2 * t * h * e, FP4)


def adaln_attention(s: Sizes) -> _Expected:
    """q, k and v at once, scores and values of t x t for each sequence, and the projection."""
    b, t, h = s["batch"], s["tokens"], s["hidden"]
    products = 2 * b * t * h * 3 * h + 4 * b * t * t * h + 2 * b * t * h * h
    return _Expected(2 * (2 * b * t * h + 3 * b * h + 3 * h * h + 3 * h + h * h + h), products)


def paged(s: Sizes, shown: Callable[[int], int]) -> _Expected:
    """Queries and outputs, keys and values of all pages of one sequence, their numbers and its length."""
    rows, length = s.get("tokens", s["batch"]), s["page_size"] * s["max_pages"]
    q, kv = s["q_heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    moved = 2 * (2 * rows * q + 2 * length * kv) + 4 * (s["max_pages"] + 1)
    return _Expected(moved, 4 * q * shown(length))


def paged_decode(s: Sizes) -> _Expected:
    return paged(s, lambda length: length)


def paged_prefill(s: Sizes) -> _Expected:
    """The last of `chunk` queries sees every key, each before it one less."""
    c = s["chunk"]
    return paged(s, lambda length: c * length - c * (c - 1) // 2)


BY_HAND: dict[str, Callable[[Sizes], _Expected]] = {
    "attention/gqa_paged_decode": paged_decode,
    "attention/gqa_paged_prefill": paged_prefill,
    "diffusion/adaln_attention_block": adaln_attention,
    "gemm/bf16_n4096_k4096": gemm,
    "llm/decoder_mlp_block": decoder_mlp,
    "llm/rmsnorm_backward": rmsnorm_backward,
    "moe/nvfp4_linear_gated": nvfp4_linear,
    "moe/topk_routing": topk_routing,
    "starter/adaln_modulate": adaln,
    "starter/causal_conv1d_silu": causal_conv,
    "starter/residual_rmsnorm_backward": residual_rmsnorm_backward,
    "starter/rmsnorm_h4096": rmsnorm,
    "starter/rope_gqa": rope,
    "starter/swiglu_h14336": swiglu,
}


def _has(key: str, word: str) -> bool:
    return word in json.loads((PROBLEMS / key / "definition.json").read_text())


def _is_extracted(key: str) -> bool:
    return _has(key, "x_provenance")


def test_every_problem_that_is_written_by_hand_is_computed_by_hand() -> None:
    """Those with an origin are in test_bounds_of_serving_problems.py."""
    expected_keys = [key for key in list_problems(PROBLEMS) if not _is_extracted(key) and not _has(key, "x_origin")]
    assert sorted(BY_HAND) == expected_keys


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in list_problems(PROBLEMS) if _is_extracted(key)])
def test_every_extracted_problem_has_a_bound(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_values, "MOST_SECONDS", 100.0)  # load of the machine must not fail the test
    problem = load_problem(PROBLEMS / key, key=key)
    for workload in (problem.workloads[0], problem.workloads[-1]):
        assert bounds(problem, workload, hardware("h200")).sol_us > 0.0


@pytest.mark.parametrize("selection", ["some", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", sorted(BY_HAND))
def test_bounds_are_those_computed_by_hand(key: str, selection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_values, "MOST_SECONDS", 100.0)  # load of the machine must not fail the test
    problem = load_problem(PROBLEMS / key, key=key)
    first_and_middle = (problem.workloads[0], problem.workloads[len(problem.workloads) // 2])
    for workload in problem.workloads if selection == "all" else first_and_middle:
        sizes = problem.sizes(workload)
        for target in ("h200", "b200") if selection == "all" else ("h200",):
            machine = hardware(target)
            result = bounds(problem, workload, machine)
            if (
                "paged" in key and sizes["batch"] > 1
            ):  # lengths are drawn: a first whole sequence, others of half and more
                single = BY_HAND[key]({**sizes, "batch": 1, "tokens": sizes.get("chunk", 1)})
                assert 0.5 * sizes["batch"] * single.bytes < result.bytes <= sizes["batch"] * single.bytes
                continue
            expected = BY_HAND[key](sizes)
            assert result.bytes == expected.bytes
            assert sum(result.products.values()) == expected.products
            assert {pair for pair, count in result.products.items() if count} <= {(expected.dtype, expected.dtype)}
            memory_us = expected.bytes / machine.bandwidth_gbs / 1e3
            product_us = expected.products / machine.product_tflops(expected.dtype) / 1e6
            assert math.isclose(result.times_us["memory"], memory_us)
            assert math.isclose(result.times_us["products"], product_us)
            assert result.sol_us >= result.floor_us >= 0
