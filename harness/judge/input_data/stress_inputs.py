"""Awkward inputs of a workload's own shapes: what ordinary random values never show.

Each case changes an ordinary draw of the inputs, in place. Only activations (role `normal`) of 16 bits and more are
made awkward, and in the case of small integers what they are multiplied with and added to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from harness.judge.input_data.roles import Purpose, Role, purpose_of
from harness.judge.reference import Value
from harness.model.problem import Problem, RandomInput, Tolerance, Workload

_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_TAIL = 3
_SELECTS = re.compile(r"\b(topk|arg(max|min|sort)|sort|kthvalue|multinomial|searchsorted|unique)\b")
"""Operations of a reference that break ties: between equal values an honest implementation may choose otherwise."""
_WITHOUT_TIES = ("large", "small")
_INTEGERS = {Role.NORMAL: (-2, 3), Role.WEIGHT: (-1, 2), Role.BIAS: (-2, 3), Role.AROUND_ONE: (1, 4)}
_SMALLEST = {torch.float16: 2.0**-20, torch.float64: 2.0**-1040}
"""Factors that make a standard normal variate denormal; other dtypes have float32's exponents."""


@dataclass(frozen=True)
class Case:
    """One kind of awkward input and how its outputs are compared."""

    name: str
    change: Callable[[torch.Tensor, Role], None]
    scaled: bool = False
    """The absolute tolerance goes with the outputs' own scale."""
    zero_is_wrong: bool = True


def _times(factor: float) -> Callable[[torch.Tensor, Role], None]:
    def change(tensor: torch.Tensor, role: Role) -> None:
        if role is Role.NORMAL:
            tensor.mul_(factor)

    return change


def _offset(tensor: torch.Tensor, role: Role) -> None:
    if role is Role.NORMAL:
        tensor.add_(8.0)


def _denormal(tensor: torch.Tensor, role: Role) -> None:
    if role is Role.NORMAL:
        tensor.mul_(_SMALLEST.get(tensor.dtype, 2.0**-130))


def _tail(tensor: torch.Tensor, role: Role) -> None:
    """Zero but in the last row and the last few of each row, where remainders are handled."""
    if role is not Role.NORMAL or tensor.dim() == 0:
        return
    last_row = tensor.view(-1, tensor.shape[-1])[-1].clone()
    tensor[..., : max(0, tensor.shape[-1] - _TAIL)] = 0
    tensor.view(-1, tensor.shape[-1])[-1] = last_row
    tensor.mul_(4.0)


def _spike(tensor: torch.Tensor, role: Role) -> None:
    """One very large value among ordinary ones, in the very last place."""
    if role is Role.NORMAL:
        tensor.view(-1)[-1] = 512.0


def _integers(tensor: torch.Tensor, role: Role) -> None:
    if role in _INTEGERS:
        tensor.copy_(torch.randint(*_INTEGERS[role], tensor.shape, device=tensor.device))


CASES = {
    case.name: case
    for case in (
        Case("large", _times(256.0), scaled=True),
        Case("small", _times(2.0**-10), scaled=True),
        Case("offset", _offset, scaled=True),
        Case("zeros", _times(0.0), zero_is_wrong=False),
        Case("denormals", _denormal, zero_is_wrong=False),
        Case("tail", _tail),
        Case("spike", _spike, scaled=True),
        Case("integers", _integers),
    )
}


def stress_cases(problem: Problem, workload: Workload) -> tuple[str, ...]:
    """The cases that change something in this workload's inputs, and leave one right answer."""
    roles = {purpose.role for purpose in _purposes(problem, workload).values()}
    outputs = problem.definition.outputs.values()
    if _SELECTS.search(problem.definition.reference) or any(spec.dtype.startswith("int") for spec in outputs):
        return _WITHOUT_TIES if Role.NORMAL in roles else ()
    if Role.NORMAL in roles:
        return tuple(CASES)
    return ("integers",) if roles & set(_INTEGERS) else ()


def make(case: str, problem: Problem, workload: Workload, tensors: Mapping[str, Value]) -> Mapping[str, Value]:
    """Change an ordinary draw into a case's, in place, and give it back."""
    for name, purpose in _purposes(problem, workload).items():
        tensor = tensors[name]
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            CASES[case].change(tensor, purpose.role)
    return tensors


def tolerance_for(
    case: str, tolerance: Tolerance, expected: Mapping[str, torch.Tensor], usual_rms: Mapping[str, float]
) -> dict[str, Tolerance]:
    """By output, the tolerance that means the same for a case's outputs as the workload's does for ordinary ones.

    An absolute tolerance was chosen for outputs of the usual size. Where a case changes their size it goes with it.
    Small integers through a linear operation give integers, exactly: there every element must be right.
    """
    found = {}
    for name, value in expected.items():
        if case == "integers" and _exact_integers(value):
            found[name] = tolerance.model_copy(
                update={"max_atol": 0.25, "max_rtol": 0.0, "required_matched_ratio": 1.0, "max_error_cap": None}
            )
        elif CASES[case].scaled and value.dtype in _FLOATS and usual_rms.get(name, 0.0) > 0.0:
            ratio = min(1e12, max(1e-12, rms(value) / usual_rms[name]))
            cap = tolerance.max_error_cap
            found[name] = tolerance.model_copy(
                update={"max_atol": tolerance.max_atol * ratio, "max_error_cap": None if cap is None else cap * ratio}
            )
        else:
            found[name] = tolerance
    return found


def rms(value: torch.Tensor) -> float:
    """Root mean square of a tensor of any dtype."""
    if value.dtype == torch.float4_e2m1fn_x2 or value.numel() == 0:
        return 0.0
    found = float(value.double().square().mean().sqrt())
    return found if math.isfinite(found) else 0.0


def _exact_integers(value: torch.Tensor) -> bool:
    """Return true for integers that the dtype holds with room: sums of them in any order are exact."""
    if value.dtype not in _FLOATS or not bool((value == value.round()).all()) or not bool(value.any()):
        return False
    return float(value.abs().amax()) < 0.5 / torch.finfo(value.dtype).eps


def _purposes(problem: Problem, workload: Workload) -> dict[str, Purpose]:
    sizes = problem.sizes(workload)
    return {
        name: purpose_of(name, problem.definition, sizes)
        for name, spec in problem.definition.inputs.items()
        if spec.shape is not None
        and isinstance(workload.inputs.get(name), RandomInput)
        and spec.dtype in {"float64", "float32", "float16", "bfloat16"}
    }
