"""Stress cases: inputs of a workload's shapes with errors that ordinary random values do not reveal.

Each case changes ordinary random inputs in place. Only activations (role `normal`) of 16 bits and more are changed, and
for small integers also the factors and summands of the activations.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from harness.judge.input_data.roles import Purpose, Role, purpose_of
from harness.judge.reference import Value
from harness.model.problem import Problem, RandomInput, Tolerance, Workload

_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_TAIL = 3
_MOST_SPIKES, _VALUES_PER_SPIKE = 16, 64
"""Largest number of large values at secret positions, and number of all values for each of them."""
_SELECTS = re.compile(r"\b(topk|arg(max|min|sort)|sort|kthvalue|multinomial|searchsorted|unique)\b")
"""Operations of a reference that select among equal values, where a correct implementation may select another one."""
_WITHOUT_TIES = ("large", "small")
_INTEGERS = {Role.NORMAL: (-2, 3), Role.WEIGHT: (-1, 2), Role.BIAS: (-2, 3), Role.AROUND_ONE: (1, 4)}
_SMALLEST = {torch.float16: 2.0**-20, torch.float64: 2.0**-1040}
"""Factors that make standard normal values denormal; other dtypes have the exponents of float32."""


@dataclass(frozen=True)
class Case:
    """A stress case: the change of the inputs, and the comparison of the outputs."""

    change: Callable[[torch.Tensor, Role, random.Random], object]
    """Changes an input of one of these roles in place, with random numbers from a generator."""
    roles: Collection[Role] = (Role.NORMAL,)
    scaled: bool = False
    """Scale the absolute tolerance with the outputs."""
    zero_is_wrong: bool = True
    """Outputs that are all zero are wrong."""


def _tail(tensor: torch.Tensor, *_: object) -> None:
    """Set all values to zero except the last row and the last few of each row, where kernels process remainders."""
    if tensor.dim() == 0:
        return
    last_row = tensor.view(-1, tensor.shape[-1])[-1].clone()
    tensor[..., : max(0, tensor.shape[-1] - _TAIL)] = 0
    tensor.view(-1, tensor.shape[-1])[-1] = last_row
    tensor.mul_(4.0)


def _spike(tensor: torch.Tensor, _: Role, generator: random.Random) -> None:
    """Set the last value and a few at secret positions to a very large one.

    Without the latter, a sum that omits part of a row could pass where the error of a random sample is allowed.
    """
    last = tensor.numel() - 1
    count = min(_MOST_SPIKES, last // _VALUES_PER_SPIKE)
    positions = [last, *(generator.randrange(last) for _ in range(count))]
    tensor.view(-1)[torch.tensor(positions, device=tensor.device)] = 512.0


def _integers(tensor: torch.Tensor, role: Role, generator: random.Random) -> None:
    of_torch = torch.Generator(tensor.device).manual_seed(generator.getrandbits(63))
    tensor.copy_(torch.randint(*_INTEGERS[role], tensor.shape, generator=of_torch, device=tensor.device))


CASES = {
    "large": Case(lambda tensor, *_: tensor.mul_(256.0), scaled=True),
    "small": Case(lambda tensor, *_: tensor.mul_(2.0**-10), scaled=True),
    "offset": Case(lambda tensor, *_: tensor.add_(8.0), scaled=True),
    "zeros": Case(lambda tensor, *_: tensor.mul_(0.0), zero_is_wrong=False),
    "denormals": Case(lambda tensor, *_: tensor.mul_(_SMALLEST.get(tensor.dtype, 2.0**-130)), zero_is_wrong=False),
    "tail": Case(_tail),
    "spike": Case(_spike, scaled=True),
    "integers": Case(_integers, _INTEGERS),
}
"""Stress cases by name."""


def stress_cases(problem: Problem, workload: Workload) -> tuple[str, ...]:
    """Return the cases that change this workload's inputs and for which only one result is correct.

    Args:
        problem: the problem.
        workload: one of its workloads.
    """
    roles = {purpose.role for purpose in _purposes(problem, workload).values()}
    outputs = problem.definition.outputs.values()
    if _SELECTS.search(problem.definition.reference) or any(spec.dtype.startswith("int") for spec in outputs):
        return _WITHOUT_TIES if Role.NORMAL in roles else ()
    if Role.NORMAL in roles:
        return tuple(CASES)
    return ("integers",) if roles & set(_INTEGERS) else ()


def make(
    case: str, problem: Problem, workload: Workload, tensors: Mapping[str, Value], generator: random.Random
) -> Mapping[str, Value]:
    """Change ordinary random inputs into those of a case, in place, and return them.

    Args:
        case: name of the case.
        problem: the problem.
        workload: one of its workloads.
        tensors: the inputs by name.
        generator: source of random numbers; the judge's is the operating system's.
    """
    for name, purpose in _purposes(problem, workload).items():
        tensor = tensors[name]
        if isinstance(tensor, torch.Tensor) and tensor.numel() and purpose.role in CASES[case].roles:
            CASES[case].change(tensor, purpose.role, generator)
    return tensors


def tolerance_for(
    case: str, tolerance: Tolerance, expected: Mapping[str, torch.Tensor], usual_rms: Mapping[str, float]
) -> dict[str, Tolerance]:
    """Return the tolerance of each output for a case, equivalent to the workload's for ordinary outputs.

    The absolute tolerance of a workload is for outputs of ordinary scale. It is multiplied by the change of the scale.
    A linear operation on small integers has exact integers as results, for which every element must be correct.

    Args:
        case: name of the case.
        tolerance: tolerance of the workload.
        expected: the reference's outputs by name.
        usual_rms: root mean square of ordinary outputs by name.
    """
    tolerances = {}
    for name, value in expected.items():
        if case == "integers" and _exact_integers(value):
            tolerances[name] = tolerance.model_copy(
                update={"max_atol": 0.25, "max_rtol": 0.0, "required_matched_ratio": 1.0, "max_error_cap": None}
            )
        elif CASES[case].scaled and value.dtype in _FLOATS and usual_rms.get(name, 0.0) > 0.0:
            ratio = min(1e12, max(1e-12, rms(value) / usual_rms[name]))
            cap = tolerance.max_error_cap
            tolerances[name] = tolerance.model_copy(
                update={"max_atol": tolerance.max_atol * ratio, "max_error_cap": None if cap is None else cap * ratio}
            )
        else:
            tolerances[name] = tolerance
    return tolerances


def rms(value: torch.Tensor) -> float:
    """Return the root mean square of a tensor; 0.0 for packed four-bit floats, or if it is not finite."""
    if value.dtype == torch.float4_e2m1fn_x2 or value.numel() == 0:
        return 0.0
    root_mean_square = float(value.double().square().mean().sqrt())
    return root_mean_square if math.isfinite(root_mean_square) else 0.0


def _exact_integers(value: torch.Tensor) -> bool:
    """Return true for integers so small in the dtype that their sums are exact in any order."""
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
