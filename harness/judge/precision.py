"""The project's rule on precision: outputs are no less precise than those of an honest implementation.

An honest implementation computes at the contract's precision. The truth is the output of the problem's own reference,
run in float64 on the same inputs: every cast to float32, bfloat16 or float16, and every tensor created in one of them,
becomes float64. Casts to eight bits and fewer remain, because they are part of the problem. If that run fails, or if
part of the reference still rounds, there is no truth; the rule is then not applied, and a note gives the reason.
Exhausted memory is no such failure, and is raised as itself. `harness.judge.truth` reduces the memory of the run.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.judge.out_of_memory import as_out_of_memory, is_out_of_memory, release_frames
from harness.judge.reference import InvalidReferenceError, Reference, Value, by_name
from harness.judge.truth.memory_budget import memory_budget
from harness.judge.truth.wider_floats import RAISED, InWiderFloats, default_dtype, narrower

FACTOR = 3.0
"""Factor of the largest honest error that is allowed."""
_ULP = 2.0**-23
"""Unit in the last place of float32 at 1.0."""
_SUMMATION_ULPS = 32.0
_PERTURBED_ULPS = 8.0
_Argument = Callable[[Value, torch.dtype], Value]
"""Returns an argument of a run in a wider dtype, which the reference may change, for an input."""


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


def find_truth(
    reference: Reference,
    inputs: Sequence[Value],
    expected: Mapping[str, torch.Tensor],
    budget_bytes: int | None = None,
) -> Truth | str:
    """Return the truth for these inputs, or the reason why there is none, as a sentence.

    Args:
        reference: the problem's reference.
        inputs: in declaration order.
        expected: outputs of the reference for them at the contract's precision, by name.
        budget_bytes: limit of the device memory of each float64 run, whose other tensors are moved to host memory;
            None for no limit. The result does not depend on it.

    Raises:
        torch.OutOfMemoryError: memory is exhausted, which is no property of the reference; the CPU's allocator raises
            RuntimeError or MemoryError (`harness.judge.out_of_memory`). `Truth.moved` raises the same.
    """
    true_outputs = _run_in_float64(reference, inputs, _raised, budget_bytes)
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
        if true.shape != value.shape or not _has_truth(true, value):
            return f"no float64 truth: `{name}` is not finite or changes its shape in float64"
        outputs[name] = true
        allowed[name] = max(relative_error(true, value), honest_error(value.dtype), default_error(name, true))
    if not outputs:
        return "no float64 truth: no output is a float of at least 16 bits"

    def moved() -> dict[str, torch.Tensor]:
        moved_outputs = _run_in_float64(reference, inputs, _perturbed, budget_bytes)
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

    Elements that both hide by -inf have no error; an element that only one hides has an infinite one.

    Args:
        true: float64.
        actual: floats of the same shape.
    """
    difference = actual.to(torch.float64) - true
    if not math.isfinite(error := float(torch.linalg.vector_norm(difference))):
        hidden = (true == -math.inf) & (actual == -math.inf)  # the difference is NaN there
        error = float(torch.linalg.vector_norm(difference.masked_fill_(hidden, 0.0)))
        true = true.masked_fill(hidden, 0.0)
    scale = float(torch.linalg.vector_norm(true))
    return error / scale if scale > 0.0 else error / math.sqrt(true.numel())


def _has_truth(true: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return true if an output can be compared: it is finite, or -inf where the reference hides an element with it.

    Args:
        true: float64.
        expected: of the reference.
    """
    finite = true.isfinite()
    return bool(finite.all()) or bool((finite | ((true == -math.inf) & (expected == -math.inf))).all())


def _run_with_default_flags(reference: Reference, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
    """Return the reference's outputs with PyTorch's default flags; empty where the judge has not changed any."""
    if torch.backends.cudnn.allow_tf32:
        return {}
    torch.backends.cudnn.allow_tf32 = True
    try:
        return reference.outputs(inputs)
    finally:
        torch.backends.cudnn.allow_tf32 = False


def _run_in_float64(
    reference: Reference, inputs: Sequence[Value], argument: _Argument, budget_bytes: int | None
) -> dict[str, torch.Tensor] | str:
    try:
        return _run(torch.float64, reference, inputs, argument, budget_bytes)
    except InvalidReferenceError as error:
        return f"no float64 truth: {error.message}"
    except Exception as error:  # noqa: BLE001 - any other failure of the problem's own code means no truth
        if is_out_of_memory(error):
            raise as_out_of_memory(error) from None
        return f"no float64 truth: the reference raises {type(error).__name__} in float64: {error}".splitlines()[0]


def outputs_in(
    dtype: torch.dtype, reference: Reference, inputs: Sequence[Value], budget_bytes: int | None = None
) -> dict[str, torch.Tensor]:
    """Run a reference with its floats of 16 and 32 bits replaced by a wider dtype, and return its outputs by name.

    Args:
        dtype: float64 or float32.
        reference: the problem's reference.
        inputs: in declaration order.
        budget_bytes: limit of the run's device memory, as of `find_truth`.

    Raises:
        InvalidReferenceError: it does not return the declared outputs. Its own exceptions are not caught.
    """
    return _run(dtype, reference, inputs, _raised, budget_bytes)


def _run(
    dtype: torch.dtype,
    reference: Reference,
    inputs: Sequence[Value],
    argument: _Argument,
    budget_bytes: int | None,
) -> dict[str, torch.Tensor]:
    """Run the reference in a wider dtype for arguments that are made from inputs; only its outputs remain alive."""
    device = next((value.device.type for value in inputs if isinstance(value, torch.Tensor)), "cpu")
    with contextlib.nullcontext() if budget_bytes is None else memory_budget(budget_bytes, device):
        arguments: list[Value] = []
        try:
            arguments += (argument(value, dtype) for value in inputs)
            with torch.no_grad(), default_dtype(dtype), InWiderFloats(dtype):
                returned = reference.run(*arguments)
            outputs = by_name(returned, reference.definition, arguments)
            return {name: value.detach() for name, value in outputs.items()}
        except BaseException as error:
            release_frames(error)
            raise
        finally:
            arguments.clear()


def _raised(value: Value, dtype: torch.dtype) -> Value:
    """Return a float of 16 or 32 bits in `dtype` if that is wider, else a copy, which the reference may change."""
    if not isinstance(value, torch.Tensor) or value.dtype == torch.float4_e2m1fn_x2:
        return value
    return value.to(dtype) if value.dtype in narrower(dtype) else value.clone()


def _perturbed(value: Value, dtype: torch.dtype) -> Value:
    """Return a float of 16 or 32 bits in float64 and changed in its last places, and a copy of another value."""
    if not isinstance(value, torch.Tensor) or value.dtype not in RAISED:
        return _raised(value, dtype)
    double = value.double()
    # Five times as fast on a CPU as variates of float64, which nothing here needs.
    noise = torch.randn(value.shape, dtype=torch.float32, device=value.device)
    return torch.addcmul(double, double, noise.double(), value=_PERTURBED_ULPS * _ULP)
