"""Checks of a problem's outputs and inputs at small sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from harness.corpus.deep_check.small_judge import LEAST_SHAPES, SEED, Outputs, allowed_axes, difference, small_workload
from harness.corpus.errors import SkippedError
from harness.corpus.verification import check_degenerate
from harness.corpus.workloads import shown
from harness.judge.correctness import all_finite
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import InvalidReferenceError, Reference, Value
from harness.model.problem import Problem


def output_failures(problem: Problem, reference: Reference) -> list[str]:
    """Return a failure for each shape with an output that is not finite, and for a constant output at the last shape.

    Raises:
        FormatError: the reference fails, or no small sizes meet the problem's constraints.
    """
    failures = []
    source = InputSource(problem, reference=reference, seed=SEED)
    sizes = allowed_axes(problem)
    if len(sizes) < LEAST_SHAPES:
        failures.append(f"its constraints allow {len(sizes)} of the {LEAST_SHAPES} small shapes")
    outputs: Outputs = {}
    for axes in sizes:
        workload = small_workload(problem, axes)
        outputs = reference.outputs(list(source.draw(workload).values()))
        if not all_finite(outputs, workload.tolerance):
            failures.append(f"an output is not finite at {shown(axes)}")
    try:
        check_degenerate(_finite(outputs), sizes[-1])
    except SkippedError as error:
        failures.append(f"output {error.message}")
    return failures


def _finite(outputs: Outputs) -> Outputs:
    """Return the outputs with zeros for infinities, which `all_finite` checks; packed four-bit floats are omitted."""
    return {
        name: torch.nan_to_num(value.float(), posinf=0.0, neginf=0.0) if value.is_floating_point() else value
        for name, value in outputs.items()
        if value.dtype != torch.float4_e2m1fn_x2
    }


def input_failures(
    problem: Problem,
    reference: Reference,
    inputs: Sequence[Value],
    expected: Outputs,
    effective_inputs: Collection[str] = (),
) -> list[str]:
    """Return a failure for each input that can change without a change of any output.

    Args:
        inputs: the inputs in declaration order.
        expected: the reference's outputs for the inputs.
        effective_inputs: names of inputs that affect an output; they are not checked.
    """
    failures = []
    for place, name in enumerate(problem.definition.inputs):
        values = _changed_values(inputs[place])
        changes = (_changes_outputs(reference, inputs, place, value, expected) for value in values)
        if name not in effective_inputs and not any(changes):
            failures.append(f"the input `{name}` does not matter: no output changes with it")
    return failures


def _changes_outputs(
    reference: Reference, inputs: Sequence[Value], place: int, value: Value, expected: Outputs
) -> bool:
    try:
        outputs = reference.outputs([*inputs[:place], value, *inputs[place + 1 :]])
    except InvalidReferenceError:
        return True  # lengths and offsets in another order can be inconsistent
    shapes_differ = any(outputs[name].shape != value.shape for name, value in expected.items())
    return shapes_differ or any(difference(outputs, expected).values())


def _changed_values(value: Value) -> Iterator[Value]:
    """Yield other values of the same kind: the elements in another order, then halved."""
    if not isinstance(value, torch.Tensor):
        yield not value if isinstance(value, bool) else value + 1
        return
    if value.dtype == torch.bool:
        yield ~value
        return
    plain = value.view(torch.uint8) if value.dtype.itemsize == 1 else value
    yield plain.flatten().roll(1).view(plain.shape).view(value.dtype)
    if value.is_floating_point() and value.dtype.itemsize > 1:
        yield value * 0.5
    elif not value.is_floating_point():
        yield value.div(2, rounding_mode="floor")
