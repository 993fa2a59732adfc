"""The project's rule on precision: outputs are no less precise than those of an honest implementation.

An honest implementation computes at the contract's precision. The truth is the output of the problem's own reference,
run in float64 on the same inputs: every cast to float32, bfloat16 or float16, and every tensor created in one of them,
becomes float64. Casts to eight bits and fewer remain, because they are part of the problem. If that run fails, or if
part of the reference still rounds, there is no truth; the rule is then not applied, and a note gives the reason.

The rule limits the root mean square error of an output, relative to the root mean square of the truth. The limit is 3
times the largest of
- the error of the reference at the contract's precision, and its error with PyTorch's default flags, with which
  convolutions of float32 use TF32 (the expected outputs are computed without TF32);
- one rounding to the output's dtype plus 32 units in the last place of float32 (summing 16,384 float32 values one by
  one, which is honest, had errors of up to 27 units in a measurement);
- the change of the truth when every float input changes by 8 float32 units in the last place, because no
  implementation can avoid errors that the problem amplifies.
A float32 problem computed in tf32 or float16 has an error of about 2,000 units, in bfloat16 of about 16,000.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from harness.judge.reference import InvalidReferenceError, Reference, Value, by_name

FACTOR = 3.0
"""Factor of the largest honest error that is allowed."""
_ULP = 2.0**-23
"""Unit in the last place of float32 at 1.0."""
_SUMMATION_ULPS = 32.0
_PERTURBED_ULPS = 8.0
_RAISED = frozenset({torch.float32, torch.bfloat16, torch.float16})
_CASTS: dict[torch.dtype, Callable[..., Any]] = {
    torch.float64: torch.Tensor.double,
    torch.float32: torch.Tensor.float,
    torch.float16: torch.Tensor.half,
    torch.bfloat16: torch.Tensor.bfloat16,
}


class _InWiderFloats(TorchFunctionMode):
    """Replaces narrower floating dtypes in calls of torch by a wider one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._casts: dict[Callable[..., Any], Callable[..., Any]] = {
            cast: _CASTS[dtype] for narrow, cast in _CASTS.items() if narrow in _narrower(dtype)
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
        if getattr(func, "__name__", "") in _GROUPED_PRODUCTS and raised[0].dtype == torch.float64:
            return _grouped_product(*raised, **named)
        return self._casts.get(func, func)(*raised, **named)

    def _raise(self, value: Any) -> Any:  # noqa: ANN401 - any argument of any function of torch
        return self._dtype if isinstance(value, torch.dtype) and value in _narrower(self._dtype) else value


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let factories of torch create this dtype inside this context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


_GROUPED_PRODUCTS = frozenset({"grouped_mm", "_grouped_mm"})
"""Functions of torch that have no kernel for float64 (2.13)."""


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


def _narrower(dtype: torch.dtype) -> frozenset[torch.dtype]:
    """Return the dtypes that `dtype` replaces."""
    return frozenset(narrow for narrow in _RAISED if narrow.itemsize < dtype.itemsize)


@dataclass
class Truth:
    """Outputs in float64 for one set of inputs, and the errors that are honest there."""

    outputs: dict[str, torch.Tensor]
    """Float outputs by name, in float64."""
    allowed: dict[str, float]
    """Relative root mean square error of an honest implementation, by output."""
    moved: Callable[[], dict[str, torch.Tensor]] = field(repr=False)
    """Returns the float64 outputs for inputs changed in their last places, by name; empty if the reference fails."""
    _has_sensitivity: bool = False

    def broken_by(self, actual: Mapping[str, torch.Tensor]) -> str | None:
        """Return the reason why these outputs break the rule; None if they keep it."""
        for name in self.outputs:
            error = relative_error(self.outputs[name], actual[name])
            if not error <= FACTOR * self.allowed[name]:
                self._allow_sensitivity()
            if not error <= FACTOR * self.allowed[name]:
                return (
                    f"output `{name}` is less precise than an honest implementation (our rule): its relative root mean "
                    f"square error against float64 is {error:.2e}; {FACTOR:g} times {self.allowed[name]:.2e} is allowed"
                )
        return None

    def limits_to_reference(self) -> dict[str, float]:
        """Return the largest relative difference from the reference, by output, if both keep the rule.

        It is the sum of both errors.
        """
        return {name: (FACTOR + 1.0) * allowed for name, allowed in self.allowed.items()}

    def _allow_sensitivity(self) -> None:
        """Raise the allowed errors to the outputs' changes when the inputs change in their last places."""
        if self._has_sensitivity:
            return
        self._has_sensitivity = True
        for name, value in self.moved().items():
            if name in self.allowed:
                self.allowed[name] = max(self.allowed[name], relative_error(self.outputs[name], value))


def find_truth(reference: Reference, inputs: Sequence[Value], expected: Mapping[str, torch.Tensor]) -> Truth | str:
    """Return the truth for these inputs, or the reason why there is none, as a sentence.

    Args:
        reference: the problem's reference.
        inputs: in declaration order.
        expected: outputs of the reference for them at the contract's precision, by name.
    """
    true_outputs = _run_in_float64(reference, inputs)
    if isinstance(true_outputs, str):
        return true_outputs
    outputs, allowed = {}, {}
    by_default = _run_with_default_flags(reference, inputs)

    def default_error(name: str, true: torch.Tensor) -> float:
        return relative_error(true, by_default[name]) if name in by_default else 0.0

    for name, value in expected.items():
        if not value.dtype.is_floating_point or value.dtype.itemsize < 2 or value.numel() == 0:
            continue
        true = true_outputs[name]
        if true.dtype != torch.float64:
            return f"no float64 truth: the reference returns `{name}` in {true.dtype} even when run in float64"
        if true.shape != value.shape or not bool(true.isfinite().all()):
            return f"no float64 truth: `{name}` is not finite or changes its shape in float64"
        outputs[name] = true
        allowed[name] = max(relative_error(true, value), honest_error(value.dtype), default_error(name, true))
    if not outputs:
        return "no float64 truth: no output is a float of at least 16 bits"

    def moved() -> dict[str, torch.Tensor]:
        moved_outputs = _run_in_float64(reference, [_perturbed(value) for value in inputs])
        return {} if isinstance(moved_outputs, str) else moved_outputs

    return Truth(outputs, allowed, moved)


def honest_error(dtype: torch.dtype) -> float:
    """Return the relative error of an honest implementation that sums one by one in float32 and rounds once to `dtype`.

    The error of one rounding is uniform within half a unit in the last place, so its standard deviation is half of the
    machine epsilon divided by the square root of 3.
    """
    rounding = 0.5 * torch.finfo(dtype).eps / math.sqrt(3.0)
    units = _ULP if dtype != torch.float64 else torch.finfo(torch.float64).eps
    return rounding + _SUMMATION_ULPS * units


def relative_error(true: torch.Tensor, actual: torch.Tensor) -> float:
    """Return the root mean square of the errors divided by that of the truth; not divided if the truth is all zero.

    Args:
        true: float64.
        actual: floats of the same shape.
    """
    error = float(torch.linalg.vector_norm(actual.to(torch.float64) - true))
    scale = float(torch.linalg.vector_norm(true))
    return error / scale if scale > 0.0 else error / math.sqrt(true.numel())


def _run_with_default_flags(reference: Reference, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
    """Return the reference's outputs with PyTorch's default flags; empty where the judge has not changed any."""
    if torch.backends.cudnn.allow_tf32:
        return {}
    torch.backends.cudnn.allow_tf32 = True
    try:
        return reference.outputs(inputs)
    finally:
        torch.backends.cudnn.allow_tf32 = False


def _run_in_float64(reference: Reference, inputs: Sequence[Value]) -> dict[str, torch.Tensor] | str:
    try:
        return outputs_in(torch.float64, reference, inputs)
    except InvalidReferenceError as error:
        return f"no float64 truth: {error.message}"
    except Exception as error:  # noqa: BLE001 - any failure of the problem's own code means no truth
        return f"no float64 truth: the reference raises {type(error).__name__} in float64: {error}".splitlines()[0]


def outputs_in(dtype: torch.dtype, reference: Reference, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
    """Run a reference with its floats of 16 and 32 bits replaced by a wider dtype, and return its outputs by name.

    Args:
        dtype: float64 or float32.
        reference: the problem's reference.
        inputs: in declaration order.

    Raises:
        InvalidReferenceError: it does not return the declared outputs. Its own exceptions are not caught.
    """
    raised = [_raised(value, dtype) for value in inputs]
    with torch.no_grad(), _default_dtype(dtype), _InWiderFloats(dtype):
        returned = reference.run(*raised)
    return by_name(returned, reference.definition, raised)


def _raised(value: Value, dtype: torch.dtype) -> Value:
    """Return a float of 16 or 32 bits in `dtype` if that is wider, else a copy, which the reference may change."""
    if not isinstance(value, torch.Tensor) or value.dtype == torch.float4_e2m1fn_x2:
        return value
    return value.to(dtype) if value.dtype in _narrower(dtype) else value.clone()


def _perturbed(value: Value) -> Value:
    if not isinstance(value, torch.Tensor) or value.dtype not in _RAISED:
        return value
    double = value.double()
    # Five times as fast on a CPU as variates of float64, which nothing here needs.
    noise = torch.randn(value.shape, dtype=torch.float32, device=value.device)
    return torch.addcmul(double, double, noise.double(), value=_PERTURBED_ULPS * _ULP)
