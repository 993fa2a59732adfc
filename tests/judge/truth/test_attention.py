from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from harness.formats.problems import list_problems, load_problem
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.precision import outputs_in
from harness.judge.reference import load_reference
from harness.judge.truth import attention as by_blocks
from harness.judge.truth.attention import attention
from harness.model.problem import Problem, Workload

PROBLEMS = Path(__file__).parents[3] / "problems"
QUERIES, KEYS, WIDTH, VALUE_WIDTH = 7, 9, 4, 5
ROW_BYTES = KEYS * 8


def whole(*args: Any, **kwargs: Any) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(*args, **kwargs)


def double(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    assert actual.is_contiguous()
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-14)


def operands(*leading: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return double(*leading, QUERIES, WIDTH), double(*leading, KEYS, WIDTH), double(*leading, KEYS, VALUE_WIDTH)


def hiding_mask(*leading: int) -> torch.Tensor:
    """Return a bool mask that hides all keys of one query."""
    mask = torch.rand(*leading, QUERIES, KEYS) > 0.4
    mask[..., 3, :] = False
    return mask


MASKS: dict[str, Callable[[], torch.Tensor | None]] = {
    "none": lambda: None,
    "bool": lambda: hiding_mask(2, 6),
    "bool of all heads": lambda: hiding_mask(2, 1),
    "bool of all batches": hiding_mask,
    "bool of keys": lambda: torch.arange(KEYS) < 5,
    "added": lambda: double(2, 6, QUERIES, KEYS),
    "added to rows": lambda: double(6, QUERIES, 1),
    "added to keys": lambda: double(KEYS),
    "hidden by infinity": lambda: hiding_mask(1, 6).double().log(),
}


@pytest.fixture(params=[1, 3 * ROW_BYTES, 8 * QUERIES * ROW_BYTES])
def _small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one row of one head to several heads."""
    monkeypatch.setattr(by_blocks, "BLOCK_BYTES", request.param)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("shared_heads", [6, 3, 1])
def test_blocks_equal_the_whole(mask: Callable[[], torch.Tensor | None], shared_heads: int) -> None:
    query, key, value = operands(2, 6)
    key, value = key[:, :shared_heads], value[:, :shared_heads]
    arguments: dict[str, Any] = {"scale": 0.7, "enable_gqa": shared_heads < 6}
    attn_mask = mask()
    assert_equal(attention(query, key, value, attn_mask, **arguments), whole(query, key, value, attn_mask, **arguments))


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(("queries", "keys"), [(7, 9), (9, 7), (1, 9), (8, 8)])
@pytest.mark.parametrize("shared_heads", [6, 2])
def test_causal_blocks_equal_the_whole(queries: int, keys: int, shared_heads: int) -> None:
    query, key, value = double(2, 6, queries, 4), double(2, shared_heads, keys, 4), double(2, shared_heads, keys, 4)
    arguments: dict[str, Any] = {"is_causal": True, "enable_gqa": shared_heads < 6}
    assert_equal(attention(query, key, value, **arguments), whole(query, key, value, **arguments))


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("leading", [(), (5,), (2, 6), (2, 3, 2), (1, 1, 7, 1)])
def test_blocks_have_any_leading_axes(leading: tuple[int, ...]) -> None:
    query, key, value = operands(*leading)
    assert_equal(attention(query, key, value), whole(query, key, value))


@pytest.mark.usefixtures("_small_blocks")
def test_blocks_broadcast_and_are_views_of_other_layouts() -> None:
    query, key, value = operands(2, 6)
    assert_equal(attention(query, key[:, :1], value[0]), whole(query, key[:, :1], value[0]))
    assert_equal(attention(query[0, 0], key, value), whole(query[0, 0], key, value))
    strided: list[Any] = [
        operand.transpose(1, 2).contiguous().transpose(1, 2) for operand in (query, key[:, :2], value[:, :2])
    ]
    assert_equal(attention(strided[0], strided[1], strided[2], enable_gqa=True), whole(*strided, enable_gqa=True))
    # The key and the value may have different numbers of heads.
    assert_equal(
        attention(query, key[:, :2], value[:, :3], enable_gqa=True),
        whole(query, key[:, :2], value[:, :3], enable_gqa=True),
    )


@pytest.mark.usefixtures("_small_blocks")
def test_hidden_queries_have_no_gradient() -> None:
    query, key, value = (operand.requires_grad_() for operand in operands(2, 6))
    gradients = torch.autograd.grad(attention(query, key, value, hiding_mask()).sum(), (query, key, value))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert float(gradients[0][..., 3, :].abs().max()) == 0.0


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_are_differentiable(is_causal: bool) -> None:
    query, key, value = operands(2, 6)
    mask = None if is_causal else double(6, 1, KEYS).requires_grad_()
    inputs: list[Any] = [query.requires_grad_(), key[:, :2].requires_grad_(), value[:, :2].requires_grad_()]
    variables = inputs if mask is None else [*inputs, mask]
    arguments: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": True}
    gradient = double(2, 6, QUERIES, VALUE_WIDTH)
    expected = torch.autograd.grad(whole(*inputs, mask, **arguments), variables, gradient)
    actual = torch.autograd.grad(attention(inputs[0], inputs[1], inputs[2], mask, **arguments), variables, gradient)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-13, atol=1e-13)


class LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("is_differentiated", [False, True])
def test_no_tensor_is_larger_than_a_block(monkeypatch: pytest.MonkeyPatch, is_differentiated: bool) -> None:
    query, key, value = double(4, 96, 4), double(4, 64, 4), double(4, 64, 4)
    query.requires_grad_(is_differentiated)
    limit = 2**14
    monkeypatch.setattr(by_blocks, "BLOCK_BYTES", limit)
    with LargestResult() as largest:  # type: ignore[no-untyped-call]
        out = attention(query, key, value)
        if is_differentiated:
            out.sum().backward()  # type: ignore[no-untyped-call]
    assert largest.bytes <= limit < by_blocks.score_bytes(query, key)


def test_calls_that_fit_into_a_block_are_torchs_own() -> None:
    query, key, value = operands(2, 6)
    assert torch.equal(attention(query, key, value), scaled_dot_product_attention(query, key, value))


@pytest.mark.usefixtures("_small_blocks")
def test_invalid_and_random_calls_are_torchs_own() -> None:
    query, key, value = operands(2, 6)
    with pytest.raises(RuntimeError, match="Explicit attn_mask should not be set when is_causal=True"):
        attention(query, key, value, hiding_mask(), is_causal=True)
    torch.manual_seed(1)
    expected = whole(query, key, value, dropout_p=0.5)
    torch.manual_seed(1)
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.equal(attention(query, key, value, dropout_p=0.5), expected)


SHIPPED = (
    "audio/moonshine_attention",
    "encoder/mobilebert_layer",
    "vision/segformer_attention",
    "vision/swin_attention",
)
"""Problems with small workloads whose references call torch's attention."""


def _calls_attention(key: str) -> bool:
    return "scaled_dot_product_attention" in (PROBLEMS / key / "definition.json").read_text()


def smallest(problem: Problem) -> Workload:
    return min(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)


def _assert_shipped(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load_problem(PROBLEMS / key, key=key)
    reference = load_reference(problem)
    inputs = list(InputSource(problem, seed=5).draw(smallest(problem)).values())
    expected = outputs_in(torch.float64, reference, inputs)
    blocks: list[Any] = []
    of_blocks = by_blocks._blocks  # noqa: SLF001 - counted

    def counted(*arguments: Any) -> Any:
        blocks.extend(of_blocks(*arguments))
        return of_blocks(*arguments)

    monkeypatch.setattr(by_blocks, "BLOCK_BYTES", 2 ** (10 if key in SHIPPED else 20))
    monkeypatch.setattr(by_blocks, "_blocks", counted)
    for name, value in outputs_in(torch.float64, reference, inputs).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-11, atol=1e-13, msg=f"{key}: {name}")
        error = torch.linalg.vector_norm(value - expected[name]) / torch.linalg.vector_norm(expected[name])
        assert float(error) < 1e-13, f"{key}: {name}"
    assert len(blocks) > 1 or key not in SHIPPED


@pytest.mark.parametrize("key", SHIPPED)
def test_blocks_equal_the_whole_in_shipped_problems(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _assert_shipped(key, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in list_problems(PROBLEMS) if _calls_attention(key)])
def test_blocks_equal_the_whole_in_every_shipped_problem(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _assert_shipped(key, monkeypatch)
