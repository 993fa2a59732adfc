"""Run torch's functions with floats of 16 and 32 bits replaced by a wider dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from harness.judge.truth.attention import attention

RAISED = frozenset({torch.float32, torch.bfloat16, torch.float16})
_CASTS: dict[torch.dtype, Callable[..., Any]] = {
    torch.float64: torch.Tensor.double,
    torch.float32: torch.Tensor.float,
    torch.float16: torch.Tensor.half,
    torch.bfloat16: torch.Tensor.bfloat16,
}


class InWiderFloats(TorchFunctionMode):
    """Replaces narrower floating dtypes in calls of torch by a wider one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._casts: dict[Callable[..., Any], Callable[..., Any]] = {
            cast: _CASTS[dtype] for narrow, cast in _CASTS.items() if narrow in narrower(dtype)
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - signature that torch requires
        del types
        raised = [self._raise(value) for value in args]
        named = {name: self._raise(value) for name, value in (kwargs or {}).items()}
        replacement = _FLOAT64_FUNCTIONS.get(getattr(func, "__name__", ""))
        if replacement is not None and self._dtype == torch.float64 and _is_float64(raised, named):
            return replacement(*raised, **named)
        return self._casts.get(func, func)(*raised, **named)

    def _raise(self, value: Any) -> Any:  # noqa: ANN401 - any argument of any function of torch
        return self._dtype if isinstance(value, torch.dtype) and value in narrower(self._dtype) else value


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let factories of torch create this dtype inside this context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return what `torch.nn.functional.grouped_mm` returns, by one product for each group.

    A matrix operand is split into groups that end at `offs`: by rows if the other operand is a stack of matrices, else
    along the summed dimension.
    """
    if offs is None:
        product = a @ b
    else:
        ends = offs.tolist()
        begins = [0, *ends[:-1]]
        groups = list(enumerate(zip(begins, ends, strict=True)))
        if a.dim() == b.dim():
            product = torch.stack([a[:, begin:end] @ b[begin:end] for _, (begin, end) in groups])
        elif a.dim() < b.dim():
            product = a.new_zeros(a.shape[0], b.shape[2])
            for group, (begin, end) in groups:
                product[begin:end] = a[begin:end] @ b[group]
        else:
            product = a.new_zeros(a.shape[1], b.shape[1])
            for group, (begin, end) in groups:
                product[:, begin:end] = a[group] @ b[:, begin:end]
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.to(out_dtype)


def narrower(dtype: torch.dtype) -> frozenset[torch.dtype]:
    """Return the dtypes that `dtype` replaces."""
    return frozenset(narrow for narrow in RAISED if narrow.itemsize < dtype.itemsize)


_FLOAT64_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "scaled_dot_product_attention": attention,
    "grouped_mm": _grouped_product,
    "_grouped_mm": _grouped_product,
}
"""Functions of torch that have no kernel for float64 (2.13), or none that does without a matrix of all scores."""


def _is_float64(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    first = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    return first is not None and first.dtype == torch.float64
