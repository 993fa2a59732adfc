"""Wrong implementations of a problem, generated from its reference.

Five kinds: an input that is left out, a wrong epsilon, a transposed operand, a last row that is not written, and lower
precision than that of the outputs' dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness.corpus.deep_check.small_judge import Draw, Outputs
from harness.corpus.deep_check.source_changes import epsilons, with_epsilon
from harness.corpus.deep_check.torch_calls import rounded, square_operands, with_rounded_results, with_transposed
from harness.judge.input_data.roles import Role, purpose_of
from harness.judge.precision import FACTOR
from harness.judge.reference import Reference, Value, load_reference
from harness.model.problem import Problem, Workload
from harness.sol.problem_tensors import torch_dtype

SKIPPED_INPUT = "skipped input"
_ONES = frozenset({
    Role.AROUND_ONE, Role.POSITIVE, Role.DECAY, Role.COSINE, Role.PROBABILITY, Role.MASK, Role.BOOLEAN,
})  # fmt: skip
"""Roles whose neutral value is one: factors and masks."""
_FEWER_BITS = {
    torch.float64: 23, torch.float32: 10, torch.float16: 7, torch.bfloat16: 4, torch.float8_e4m3fn: 1,
}  # fmt: skip
"""Explicit mantissa bits of the next less precise format: of float32 for float64, TF32 for float32, bfloat16 for
float16. bfloat16 and e4m3 have no such format: three and two bits fewer."""


@dataclass(frozen=True)
class Mutant:
    """One wrong implementation."""

    kind: str
    name: str
    outputs: Callable[[Draw], Outputs]
    exact: Reference | None = None
    """The same mistake in a reference that can run in float64; None for mistakes in rounding and storing."""
    rounding_allowed: float = 1.0
    """Allowed distance from the reference, relative to the reference's own rounding error."""


def mutants(
    problem: Problem, workload: Workload, reference: Reference, draw: Draw, other_outputs: Outputs
) -> list[Mutant]:
    """Return all mutants of a problem.

    Args:
        workload: a workload with small sizes.
        draw: ordinary inputs, with which the reference runs to list its calls.
        other_outputs: outputs of the reference for other inputs: the stale content of a buffer.

    Raises:
        FormatError: a changed reference cannot be loaded.
    """
    return [
        *_skipped_inputs(problem, workload, reference),
        *_wrong_epsilons(problem),
        *_transposed_operands(reference, draw),
        *_last_rows(draw.expected, other_outputs),
        *_less_precise(reference, draw.expected),
    ]


def _computed(kind: str, name: str, reference: Reference) -> Mutant:
    return Mutant(kind, name, lambda draw: reference.outputs(draw.inputs), reference)


def _skipped_inputs(problem: Problem, workload: Workload, reference: Reference) -> Iterator[Mutant]:
    sizes = problem.sizes(workload)
    for place, (name, spec) in enumerate(problem.definition.inputs.items()):
        if spec.shape is None:
            continue
        role = purpose_of(name, problem.definition, sizes).role
        if torch_dtype(spec.dtype).is_floating_point or role in {Role.MASK, Role.BOOLEAN}:
            yield _computed(SKIPPED_INPUT, name, _with_neutral(reference, place, 1 if role in _ONES else 0))


def _with_neutral(reference: Reference, place: int, number: int) -> Reference:
    """Return a reference that replaces the elements of an input by a number."""

    def run(*inputs: Any) -> object:  # noqa: ANN401 - tensors and scalars
        value = inputs[place]
        if value.dtype == torch.float4_e2m1fn_x2:
            neutral = torch.zeros_like(value.view(torch.uint8)).view(value.dtype)
        else:
            neutral = torch.full_like(value, number)
        return reference.run(*inputs[:place], neutral, *inputs[place + 1 :])

    return replace(reference, run=run)


def _wrong_epsilons(problem: Problem) -> Iterator[Mutant]:
    definition = problem.definition
    without = definition.custom_inputs_entrypoint
    for epsilon in epsilons(definition.reference, without=without):
        for word, factor in (("10 times", 10.0), ("zero", 0.0)):
            source = with_epsilon(definition.reference, epsilon, epsilon.value * factor, without=without)
            changed = definition.model_copy(update={"reference": source})
            reference = load_reference(problem.model_copy(update={"definition": changed}))
            name = f"{word} at line {epsilon.line} ({epsilon.value:g})"
            yield _computed("wrong epsilon", name, replace(reference, definition=definition))


def _transposed_operands(reference: Reference, draw: Draw) -> Iterator[Mutant]:
    for operand in square_operands(lambda: reference.outputs(draw.inputs)):

        def run(*inputs: Value, operand: Any = operand) -> object:  # noqa: ANN401 - a SquareOperand
            return with_transposed(operand, lambda: reference.run(*inputs))

        name = f"operand {operand.place} of product {operand.call} ({operand.function})"
        yield _computed("transposed operand", name, replace(reference, run=run))


def _last_rows(expected: Outputs, other_outputs: Outputs) -> Iterator[Mutant]:
    for name, value in expected.items():
        if value.numel() < 2:
            continue
        yield Mutant("last row", f"{name} zero", _with_last_row(name, None))
        yield Mutant("last row", f"{name} stale", _with_last_row(name, other_outputs[name]))


def _with_last_row(name: str, stale: torch.Tensor | None) -> Callable[[Draw], Outputs]:
    def outputs(draw: Draw) -> Outputs:
        value = draw.expected[name]
        content = _rows(value).clone()
        content[-1] = _rows(stale)[-1] if stale is not None else 0
        return {**draw.expected, name: content.flatten().view(value.dtype).view(value.shape)}

    return outputs


def _rows(value: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor by rows; an element of a vector is a row. Torch cannot copy rows of every dtype."""
    length = value.shape[-1] if value.dim() > 1 else 1
    return value.contiguous().view(-1).view(torch.uint8).view(-1, length * value.dtype.itemsize)


def _less_precise(reference: Reference, expected: Outputs) -> Iterator[Mutant]:
    bits = {name: _FEWER_BITS[value.dtype] for name, value in expected.items() if value.dtype in _FEWER_BITS}
    if not bits:
        return
    fewest = min(bits.values())

    def all_rounded(draw: Draw) -> Outputs:
        run = replace(reference, run=lambda *inputs: with_rounded_results(fewest, lambda: reference.run(*inputs)))
        return _round_outputs(run.outputs(draw.inputs), dict.fromkeys(bits, fewest))

    yield Mutant("lower precision", f"{fewest} bits of mantissa everywhere", all_rounded)
    for name, count in bits.items():

        def one_rounded(draw: Draw, name: str = name, count: int = count) -> Outputs:
            return _round_outputs(draw.expected, {name: count})

        # The error of a reference with many roundings can exceed that of one coarse rounding, which then is accepted.
        yield Mutant("lower precision", f"{count} bits of mantissa in {name}", one_rounded, rounding_allowed=FACTOR)


def _round_outputs(outputs: Outputs, bits: dict[str, int]) -> Outputs:
    return {name: rounded(value, bits[name]) if name in bits else value for name, value in outputs.items()}
