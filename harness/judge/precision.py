"""Our rule on precision: no worse than an honest implementation at the contract's precision.

The truth is the problem's own reference run in float64 on the same inputs: every cast to and every tensor made in
float32, bfloat16 or float16 becomes float64 (casts to eight bits and fewer stay: they are what the problem is about).
Where that does not work (the reference raises, or something in it still rounds) there is no truth, no rule, and a
sentence that says why.

What counts is the root mean square error over an output, relative to the output's own root mean square. A candidate's
may be up to 3 times the largest of
- the reference's own error at the contract's precision, and its error with PyTorch's default flags: convolutions of
  float32 use TF32 then, as every user of PyTorch has them, while what is expected is computed without,
- one rounding to the output's dtype plus 32 units in the last place of float32: summing 16,384 float32 values one by
  one, which is honest, was seen to cost up to 27;
- the change in the truth when every float input moves by 8 float32 units in the last place: where a problem amplifies
  what no implementation can avoid, that is the problem's doing.
A float32 problem done in tf32 or float16 errs by some 2,000 units, in bfloat16 by some 16,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from harness.judge.reference import InvalidReferenceError, Reference, Value, by_name

FACTOR = 3.0
_ULP = 2.0**-23
_SUMMATION_ULPS = 32.0
_PERTURBED_ULPS = 8.0
_RAISED = frozenset({torch.float32, torch.bfloat16, torch.float16})
_CASTS: dict[torch.dtype, Callable[..., Any]] = {
    torch.float32: torch.Tensor.float,
    torch.float16: torch.Tensor.half,
    torch.bfloat16: torch.Tensor.bfloat16,
}
_WIDE_CASTS: dict[torch.dtype, Callable[..., Any]] = {
    torch.float64: torch.Tensor.double,
    torch.float32: torch.Tensor.float,
}


class _InWiderFloats(TorchFunctionMode):
    """Every narrower floating dtype asked for by name is a wider one, and so is what factories make when none is."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._casts: dict[Callable[..., Any], Callable[..., Any]] = {
            cast: _WIDE_CASTS[dtype] for narrow, cast in _CASTS.items() if narrow in _narrower(dtype)
        }

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._default)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - what torch asks for
        del types
        raised = [self._raise(value) for value in args]
        named = {name: self._raise(value) for name, value in (kwargs or {}).items()}
        return self._casts.get(func, func)(*raised, **named)

    def _raise(self, value: Any) -> Any:  # noqa: ANN401 - any argument of any function of torch
        return self._dtype if isinstance(value, torch.dtype) and value in _narrower(self._dtype) else value


def _narrower(dtype: torch.dtype) -> frozenset[torch.dtype]:
    """The dtypes that become `dtype`."""
    return frozenset(narrow for narrow in _RAISED if narrow.itemsize < dtype.itemsize)


@dataclass
class Truth:
    """One set of inputs with the outputs that exact arithmetic would give, nearly."""

    outputs: dict[str, torch.Tensor]
    """Float outputs only."""
    allowed: dict[str, float]
    """By output: the relative root mean square error of an honest implementation."""
    _moved: Callable[[], dict[str, torch.Tensor]] = field(repr=False)
    _asked: bool = False

    def broken_by(self, actual: Mapping[str, torch.Tensor]) -> str | None:
        """The reason why these outputs break the rule, or None."""
        for name in self.outputs:
            error = relative_error(self.outputs[name], actual[name])
            if not error <= FACTOR * self.allowed[name]:
                self._ask_sensitivity()
            if not error <= FACTOR * self.allowed[name]:
                return (
                    f"output `{name}` is less precise than an honest implementation (our rule): its relative root mean "
                    f"square error against float64 is {error:.2e}; {FACTOR:g} times {self.allowed[name]:.2e} is allowed"
                )
        return None

    def moved(self) -> dict[str, torch.Tensor]:
        """The outputs that exact arithmetic gives for inputs that differ in the last places; empty if it fails."""
        return self._moved()

    def limits_to_reference(self) -> dict[str, float]:
        """By output, how far from the reference an output can be when both keep the rule: both errors together."""
        return {name: (FACTOR + 1.0) * allowed for name, allowed in self.allowed.items()}

    def _ask_sensitivity(self) -> None:
        if self._asked:
            return
        self._asked = True
        for name, value in self._moved().items():
            if name in self.allowed:
                self.allowed[name] = max(self.allowed[name], relative_error(self.outputs[name], value))


def find_truth(reference: Reference, inputs: Sequence[Value], expected: Mapping[str, torch.Tensor]) -> Truth | str:
    """The truth for these inputs, or the sentence that says why there is none.

    Args:
        reference: the problem's.
        inputs: in declaration order.
        expected: what the reference gave for them at the contract's precision.
    """
    found = _run_in_float64(reference, inputs)
    if isinstance(found, str):
        return found
    outputs, allowed = {}, {}
    by_default = _run_with_default_flags(reference, inputs)

    def default_error(name: str, true: torch.Tensor) -> float:
        return relative_error(true, by_default[name]) if name in by_default else 0.0

    for name, value in expected.items():
        if not value.dtype.is_floating_point or value.dtype.itemsize < 2 or value.numel() == 0:
            continue
        true = found[name]
        if true.dtype != torch.float64:
            return f"no float64 truth: the reference gives `{name}` in {true.dtype} even when asked for float64"
        if true.shape != value.shape or not bool(true.isfinite().all()):
            return f"no float64 truth: `{name}` is not finite or changes its shape in float64"
        outputs[name] = true
        allowed[name] = max(relative_error(true, value), honest_error(value.dtype), default_error(name, true))
    if not outputs:
        return "no float64 truth: no output is a float of at least 16 bits"

    def moved() -> dict[str, torch.Tensor]:
        again = _run_in_float64(reference, [_perturbed(value) for value in inputs])
        return {} if isinstance(again, str) else again

    return Truth(outputs, allowed, moved)


def honest_error(dtype: torch.dtype) -> float:
    """Relative error of an honest implementation that adds in float32, naively, and rounds once."""
    rounding = 0.5 * torch.finfo(dtype).eps / math.sqrt(3.0)
    units = _ULP if dtype != torch.float64 else torch.finfo(torch.float64).eps
    return rounding + _SUMMATION_ULPS * units


def relative_error(true: torch.Tensor, actual: torch.Tensor) -> float:
    """Root mean square of the errors over that of the truth; absolute where the truth is all zero."""
    error = float((actual.to(torch.float64) - true).square().mean().sqrt())
    scale = float(true.square().mean().sqrt())
    return error / scale if scale > 0.0 else error


def _run_with_default_flags(reference: Reference, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
    """The reference's outputs with PyTorch's default flags; empty where the judge has not changed any."""
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
    except Exception as error:  # noqa: BLE001 - the border to the problem's own code: any failure means no truth
        return f"no float64 truth: the reference raises {type(error).__name__} in float64: {error}".splitlines()[0]


def outputs_in(dtype: torch.dtype, reference: Reference, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
    """Outputs of a reference whose narrower floats of 16 and 32 bits are all `dtype`, and so are its outputs.

    Args:
        dtype: float64 or float32.
        reference: the problem's.
        inputs: in declaration order.

    Raises:
        InvalidReferenceError: it returns something else than the declared outputs. What it raises itself is passed on.
    """
    raised = [_raised(value, dtype) for value in inputs]
    with torch.no_grad(), _InWiderFloats(dtype):
        returned = reference.run(*raised)
    return by_name(returned, reference.definition, raised)


def _raised(value: Value, dtype: torch.dtype) -> Value:
    """An input in `dtype` where it is a narrower float of at least 16 bits, else a copy: the reference may write it."""
    if not isinstance(value, torch.Tensor) or value.dtype == torch.float4_e2m1fn_x2:
        return value
    return value.to(dtype) if value.dtype in _narrower(dtype) else value.clone()


def _perturbed(value: Value) -> Value:
    if not isinstance(value, torch.Tensor) or value.dtype not in _RAISED:
        return value
    double = value.double()
    return double + double * torch.randn(value.shape, dtype=torch.float64, device=value.device) * (
        _PERTURBED_ULPS * _ULP
    )
