"""Changes of single calls of torch's functions while a reference runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Function = Callable[..., Any]

_PRODUCTS: Mapping[str, tuple[int, ...]] = {
    "linear": (1,), "matmul": (0, 1), "__matmul__": (0, 1), "__rmatmul__": (0, 1), "mm": (0, 1), "bmm": (0, 1),
    "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0,), "einsum": (1, 2), "conv1d": (1,), "conv2d": (1,), "conv3d": (1,),
    "_scaled_mm": (1,), "grouped_mm": (1,), "_grouped_mm": (1,),
}  # fmt: skip
"""Functions that compute a product -> positions of the operands among the arguments."""


@dataclass(frozen=True)
class SquareOperand:
    """A square operand of a product, which can be transposed by mistake."""

    call: int
    """Number of the call among all products of a run."""
    place: int
    """Index among the arguments."""
    function: str


class InterceptedCalls(TorchFunctionMode):
    """Calls `handle` with the function, the arguments and the keyword arguments instead of each function of torch."""

    def __init__(self, handle: Callable[[Function, Sequence[Any], Mapping[str, Any]], Any]) -> None:
        super().__init__()
        self._handle = handle

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - torch's interface
        del types
        return self._handle(func, args, kwargs or {})


def _with_products(product: Callable[[int, str, list[Any]], list[Any]], run: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Return the result of a run in which `product` replaces the arguments of each product, by its number and name."""
    numbers = itertools.count()

    def handle(func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as torch returns
        name = getattr(func, "__name__", "")
        return func(*(product(next(numbers), name, list(args)) if name in _PRODUCTS else args), **kwargs)

    with InterceptedCalls(handle):
        return run()


def square_operands(run: Callable[[], object]) -> list[SquareOperand]:
    """Return operands of products whose last two dimensions are equal and larger than one, in the order of calls."""
    operands: list[SquareOperand] = []

    def product(call: int, name: str, args: list[Any]) -> list[Any]:
        operands.extend(
            SquareOperand(call, place, name)
            for place in _PRODUCTS[name]
            if place < len(args) and _is_square(args[place])
        )
        return args

    _with_products(product, run)
    return operands


def with_transposed(operand: SquareOperand, run: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `run` returns
    """Return the result of a run with one operand transposed in its last two dimensions.

    Args:
        run: calls the reference.
    """

    def product(call: int, _: str, args: list[Any]) -> list[Any]:
        if call == operand.call and operand.place < len(args) and _is_square(args[operand.place]):
            args[operand.place] = args[operand.place].transpose(-1, -2)
        return args

    return _with_products(product, run)


def _is_square(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() >= 2 and value.shape[-1] == value.shape[-2] > 1


_MOVING = frozenset({
    "reshape", "view", "transpose", "permute", "t", "unsqueeze", "squeeze", "expand", "contiguous", "clone", "chunk",
    "split", "unbind", "__getitem__", "__get__", "flatten", "unflatten", "to", "float", "repeat_interleave", "detach",
    "cat", "stack", "size", "narrow", "roll", "flip", "empty_like", "empty", "zeros", "zeros_like", "new_zeros", "full",
    "new_empty", "select", "slice_scatter", "double", "half", "bfloat16", "view_as", "expand_as", "movedim", "swapaxes",
})  # fmt: skip
"""Functions that only move data, so that their results are already rounded."""


def with_rounded_results(bits: int, run: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `run` returns
    """Return the result of a run in which each computed float is rounded.

    Args:
        bits: explicit mantissa bits of the rounded values.
        run: calls the reference.
    """

    def handle(func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as torch returns
        returned = func(*args, **kwargs)
        return returned if getattr(func, "__name__", "") in _MOVING else _rounded_all(returned, bits)

    with InterceptedCalls(handle):
        return run()


def _rounded_all(value: Any, bits: int) -> Any:  # noqa: ANN401 - a tensor, several, or anything else
    if type(value) in {tuple, list}:
        return type(value)(_rounded_all(item, bits) for item in value)
    return rounded(value, bits) if isinstance(value, torch.Tensor) else value


_MANTISSA = {
    torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7, torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 2,
}  # fmt: skip
"""Explicit mantissa bits of each dtype."""
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def rounded(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Return a tensor rounded to nearest, halves away from 0, in the same dtype.

    Infinities, NaN and integers do not change.

    Args:
        bits: explicit mantissa bits of the result.
    """
    own_bits = _MANTISSA.get(value.dtype)
    if own_bits is None or own_bits <= bits:
        return value
    dropped = own_bits - bits
    pattern = value.contiguous().view(_INTEGERS[value.dtype.itemsize])
    # A carry out of the mantissa raises the exponent, which is the right result.
    result = ((pattern + (1 << (dropped - 1))) & ~((1 << dropped) - 1)).view(value.dtype)
    as_float = value.float() if value.dtype.itemsize == 1 else value
    return torch.where(as_float.isfinite(), result.to(as_float.dtype), as_float).to(value.dtype)
