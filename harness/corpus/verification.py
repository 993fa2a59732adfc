"""Verification of a drafted problem: its reference equals the original module, and each input affects an output.

The reference and the module get inputs as the judge draws them. Verification runs on the CPU in float32, and once in
the problem's own dtype.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.func import functional_call

from harness.corpus.draft import ProblemDraft
from harness.corpus.errors import SkippedError, error_summary
from harness.corpus.exporting import FlatModule
from harness.corpus.workloads import axis_size
from harness.errors import FormatError
from harness.formats.bounded import load_json
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import Reference, load_reference, torch_dtype
from harness.model.problem import Definition, Problem, RandomInput, Workload

Tensors = dict[str, torch.Tensor]

_SEED = 20260101
_MAX_ELEMENTS = 300_000_000
"""Maximum elements of all weights of a module: 1.2 GB in float32, and the same again for their gradients."""
_SIZES = ((2, 1), (1, 4), (2, 3), (1, 7))
"""(batch, sequence) of the checks."""
_BATCHES = (1, 2, 3, 5)
"""Batch sizes of the checks of problems without a sequence axis."""
_LONG = ((2, 131),)
_SMALL_MODULE_ELEMENTS = 4_000_000
"""Modules with fewer weights are also compared at `_LONG`, which exceeds the lengths of the export."""
_MIN_VARIATION = 1e-6
"""Standard deviation of an output relative to its root mean square below which the output counts as constant."""


@dataclass(frozen=True)
class Verified:
    """Facts about the outputs of a verified problem."""

    root_mean_square: float
    """Smallest root mean square of an output at the last sizes."""
    shapes: int
    """Number of shapes at which reference and module are bitwise equal."""
    low_precision_error: float
    """99 % quantile of the error of the problem's dtype against float32, relative to the root mean square."""


def verify(draft: ProblemDraft) -> Verified:
    """Compare the reference with the module, check inputs and outputs, and return facts about the outputs.

    Raises:
        SkippedError: a check fails; the message names the check.
    """
    elements = sum(math.prod(item.node.meta["val"].shape) for item in draft.sources.values() if item.place is None)
    if elements > _MAX_ELEMENTS:
        raise SkippedError(f"{elements:,} weights are too many to verify on this machine")
    single, sizes = in_dtype(draft, "float32"), check_sizes(draft.variable_axes)
    if elements < _SMALL_MODULE_ELEMENTS and any(not axis.startswith("batch") for axis in draft.variable_axes):
        sizes = [*check_sizes(draft.variable_axes, _LONG), *sizes]
    sizes = [axes for axes in sizes if draft.allows(axes)]
    outputs: dict[str, torch.Tensor] = {}
    drawn: Tensors = {}
    for axes in sizes:
        # Weights are large and have the same shapes at all sizes, so they are drawn once.
        names = [name for name, item in draft.sources.items() if item.place is not None or name not in drawn]
        drawn = {**drawn, **draw(single, axes, names)}
        drawn = {name: drawn[name] for name in draft.inputs}
        outputs = run_reference(single, drawn)
        _compare(outputs, _module_outputs(draft, drawn, torch.float32), axes)
        check_finite(outputs, axes)
    check_degenerate(outputs, sizes[-1])  # at sequence length 1 a softmax is constant
    check_each_input_matters(single, drawn, outputs)
    own = in_dtype(draft, None)
    lower = {name: as_declared(value, own, name) for name, value in drawn.items()}
    low_outputs = run_reference(own, lower)
    _compare(low_outputs, _module_outputs(draft, lower, None), sizes[-1])
    error = max(relative_error(low_outputs[name], outputs[name]) for name in outputs)
    smallest = min(root_mean_square(value) for value in outputs.values())
    return Verified(smallest, len(sizes), error)


def check_sizes(axes: Sequence[str], pairs: tuple[tuple[int, int], ...] = _SIZES) -> list[dict[str, int]]:
    """Return the sizes of the variable axes at which a problem is checked.

    Args:
        axes: the problem's variable axes.
        pairs: (batch, sequence); ignored if all axes are batch sizes.
    """
    if any(not axis.startswith("batch") for axis in axes):
        return [
            {axis: axis_size(axis, batch, sequence, text=sequence + 1) for axis in axes} for batch, sequence in pairs
        ]
    return [dict.fromkeys(axes, batch) for batch in _BATCHES]


@dataclass(frozen=True)
class RunnableProblem:
    """A drafted problem with its reference, ready to be called."""

    problem: Problem
    reference: Reference


def in_dtype(draft: ProblemDraft, dtype: str | None) -> RunnableProblem:
    """Return the problem with its reference.

    Args:
        draft: the drafted problem.
        dtype: replaces the low-precision dtypes of tensors and casts; None to keep them.

    Raises:
        SkippedError: the reference cannot be loaded.
    """
    text = json.dumps(draft.definition(name="verified"))
    if dtype is not None:
        text = text.replace("bfloat16", dtype).replace("float16", dtype)
    definition = Definition.model_validate(load_json(text, where="the drafted problem"))
    problem = Problem(
        key="corpus/verified", directory=Path(), digest="sha256:verified", definition=definition, workloads=()
    )
    try:
        return RunnableProblem(problem, load_reference(problem))
    except FormatError as error:
        raise SkippedError(f"the reference does not load: {error.message}") from error


def draw(runnable: RunnableProblem, axes: Mapping[str, int], names: Sequence[str]) -> Tensors:
    """Return inputs as the judge draws them.

    Args:
        runnable: the problem.
        axes: size of each variable axis.
        names: inputs to draw.
    """
    definition = runnable.problem.definition
    restricted = definition.model_copy(update={"inputs": {name: definition.inputs[name] for name in names}})
    problem = runnable.problem.model_copy(update={"definition": restricted})
    inputs = {name: RandomInput(type="random") for name in names}
    workload = Workload(uuid="verified", axes=dict(axes), inputs=dict(inputs))
    drawn = InputSource(problem, seed=_SEED).draw(workload)
    return {name: value for name, value in drawn.items() if isinstance(value, torch.Tensor)}


def run_reference(runnable: RunnableProblem, inputs: Tensors) -> Tensors:
    """Return the reference's outputs by name.

    Args:
        runnable: the problem.
        inputs: all inputs, in the order of the reference's parameters.

    Raises:
        SkippedError: the reference fails.
    """
    try:
        return runnable.reference.outputs(list(inputs.values()))
    except FormatError as error:
        raise SkippedError(error.message.splitlines()[0][:200]) from error


def as_declared(value: torch.Tensor, runnable: RunnableProblem, name: str) -> torch.Tensor:
    """Return a value in the dtype that the problem declares for an input.

    Args:
        value: the input's value in another dtype.
        runnable: the problem.
        name: the input.
    """
    return value.to(torch_dtype(runnable.problem.definition.inputs[name].dtype))


def _module_outputs(draft: ProblemDraft, inputs: Tensors, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Return the outputs of the original module, called with the problem's inputs as its weights and arguments."""
    weights, tensors = module_arguments(draft, inputs, dtype)
    try:
        with torch.no_grad():
            returned: list[torch.Tensor] = functional_call(
                FlatModule(draft.exported.candidate), weights, (tensors,), tie_weights=True, strict=False
            )
    except Exception as error:  # the module's own code
        raise SkippedError(f"the original module does not run: {error_summary(error)}") from error
    return returned


def module_arguments(
    draft: ProblemDraft, inputs: Tensors, dtype: torch.dtype | None
) -> tuple[Tensors, list[torch.Tensor]]:
    """Return the weights by path and the arguments in order for a call of `FlatModule`.

    Args:
        draft: the problem.
        inputs: value of each of the problem's inputs.
        dtype: dtype of low-precision arguments that the problem does not have; None to keep their own.
    """
    candidate = draft.exported.candidate
    weights: Tensors = {}
    arguments: dict[int, torch.Tensor] = {}
    for name, item in draft.sources.items():
        if item.source in {"parameter", "buffer"}:
            weights[f"module.{item.name}"] = inputs[name]
        elif item.source == "activation" and item.place is not None:
            arguments[item.place] = inputs[name]
    sizes = _axis_sizes(draft, inputs)
    tensors = [
        arguments.get(place, _unused(leaf.shape, leaf.axes, leaf.dtype, sizes, dtype))
        for place, leaf in enumerate(candidate.leaves)
    ]
    return weights, tensors


def _axis_sizes(draft: ProblemDraft, inputs: Tensors) -> dict[str, int]:
    return {
        axis: size
        for name, spec in draft.inputs.items()
        for axis, size in zip(spec["shape"], inputs[name].shape, strict=True)
    }


def _unused(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    dtype: torch.dtype,
    sizes: Mapping[str, int],
    low_precision_dtype: torch.dtype | None,
) -> torch.Tensor:
    """Return zeros for an argument that does not affect the result."""
    lengths = [sizes.get(axis, size) if axis else size for axis, size in zip(axes, shape, strict=True)]
    is_low_precision = dtype in {torch.bfloat16, torch.float16}
    return torch.zeros(
        lengths, dtype=low_precision_dtype if low_precision_dtype is not None and is_low_precision else dtype
    )


def _compare(outputs: Tensors, expected: Sequence[torch.Tensor], axes: Mapping[str, int]) -> None:
    where = shown(axes)
    if len(expected) != len(outputs):
        raise SkippedError(f"the module returns {len(expected)} tensors and the reference {len(outputs)}, at {where}")
    for (name, value), original in zip(outputs.items(), expected, strict=True):
        if value.shape != original.shape or value.dtype != original.dtype:
            raise SkippedError(f"`{name}` has another shape or dtype than the module's output, at {where}")
        if not torch.equal(value, original):
            if value.is_floating_point() and torch.equal(value.isnan(), original.isnan()) and value.isnan().any():
                raise SkippedError(f"`{name}` is not finite, at {where}")
            raise SkippedError(f"`{name}` differs from the module's output, at {where}")


def check_finite(outputs: Tensors, axes: Mapping[str, int]) -> None:
    """Check that outputs contain no infinities and no NaN.

    Args:
        outputs: outputs by name.
        axes: size of each variable axis, for the message.

    Raises:
        SkippedError: an output is not finite.
    """
    for name, value in outputs.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise SkippedError(f"`{name}` is not finite, at {shown(axes)}")


def check_degenerate(outputs: Tensors, axes: Mapping[str, int]) -> None:
    """Check that outputs are finite and not constant.

    Args:
        outputs: outputs by name.
        axes: size of each variable axis, for the message.

    Raises:
        SkippedError: an output is not finite, or constant.
    """
    check_finite(outputs, axes)
    for name, value in outputs.items():
        if not value.is_floating_point():
            continue
        scale = root_mean_square(value)
        if value.numel() > 1 and (scale == 0 or float(value.double().std()) < _MIN_VARIATION * scale):
            raise SkippedError(f"`{name}` is constant, at {shown(axes)}")


def check_each_input_matters(runnable: RunnableProblem, drawn: Tensors, outputs: Tensors) -> None:
    """Check that each input has a gradient, or that an output changes with it.

    Args:
        runnable: the problem.
        drawn: value of each input.
        outputs: the reference's outputs for these inputs.

    Raises:
        SkippedError: an input does not affect the outputs.
    """
    for name in _without_gradient(runnable, drawn):
        value = drawn[name]
        changed = run_reference(runnable, {**drawn, name: _changed(value)})
        if all(torch.equal(changed[output], outputs[output]) for output in outputs):
            raise SkippedError(f"the input `{name}` does not matter")


def _without_gradient(runnable: RunnableProblem, drawn: Tensors) -> list[str]:
    """Return the inputs without a gradient: integers, and inputs that are only compared or rounded."""
    floats = {name: value for name, value in drawn.items() if value.is_floating_point()}
    leaves = {name: value.detach().requires_grad_() for name, value in floats.items()}
    try:
        with torch.enable_grad():
            returned = runnable.reference.run(*({**drawn, **leaves}[name] for name in drawn))
            outputs = [returned] if isinstance(returned, torch.Tensor) else list(returned)
            # Squares give elements unequal weights. Without them, the sum of a softmax has no gradient.
            total = sum((value * value).sum() for value in outputs if value.requires_grad)
            if not isinstance(total, torch.Tensor):
                return list(drawn)
            gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except RuntimeError:  # an operator without a derivative
        return list(drawn)
    moved = {name for name, gradient in zip(leaves, gradients, strict=True) if gradient is not None and gradient.any()}
    return [name for name in drawn if name not in moved]


def _changed(value: torch.Tensor) -> torch.Tensor:
    """Return other values of the same kind: the elements in another order, or other values if all are equal."""
    if value.dtype == torch.bool:
        return ~value
    rolled = value.flatten().roll(1).view(value.shape)
    if not torch.equal(rolled, value):
        return rolled
    return (value + 1) % 2 if not value.is_floating_point() else value * 0.5


def root_mean_square(value: torch.Tensor) -> float:
    """Return the root mean square of all elements, computed in float64."""
    return float(value.double().square().mean().sqrt())


_QUANTILE_OF = 100_000


def relative_error(approximate: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the 99 % quantile of the absolute difference, relative to the root mean square of the exact values.

    Args:
        approximate: an output in low precision.
        exact: the same output in float32.
    """
    if not exact.is_floating_point():
        return 0.0
    difference = (approximate.double() - exact.double()).abs().flatten()[:_QUANTILE_OF]
    return float(difference.quantile(0.99)) / max(root_mean_square(exact), 1e-30)


def shown(axes: Mapping[str, int]) -> str:
    """Return the sizes of axes as text, such as `batch=2, sequence=7`."""
    return ", ".join(f"{axis}={size}" for axis, size in axes.items())
