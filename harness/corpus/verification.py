"""Verification of a drafted problem: its reference equals the original module, and each input affects an output.

The reference and the module get inputs as the judge draws them. Verification runs on the CPU in float32, and once in
the problem's own dtype.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call

from harness.corpus.draft import ProblemDraft
from harness.corpus.errors import SkippedError, error_summary
from harness.corpus.exporting import FlatModule
from harness.corpus.workloads import check_sizes, shown
from harness.errors import FormatError
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import load_reference
from harness.model.problem import Definition, Problem, RandomInput, Workload
from harness.sol.problem_tensors import torch_dtype

Tensors = dict[str, torch.Tensor]

_SEED = 20260101
_MAX_ELEMENTS = 300_000_000
"""Maximum elements of all weights of a module: 1.2 GB in float32, and the same again for their gradients."""
_LONG = ((2, 131),)
_SMALL_MODULE_ELEMENTS = 4_000_000
"""Modules with fewer weights are also compared at `_LONG`, which exceeds the lengths of the export."""
_LOW_PRECISION = frozenset({"bfloat16", "float16"})
_CAST = re.compile(r"\btorch\.b?float16\b")
"""A low-precision dtype in the code of a reference, which the export prints with torch's name."""
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
    single, sizes = RunnableProblem(draft, "float32"), check_sizes(draft.variable_axes)
    if elements < _SMALL_MODULE_ELEMENTS and any(not axis.startswith("batch") for axis in draft.variable_axes):
        sizes = [*check_sizes(draft.variable_axes, _LONG), *sizes]
    sizes = [axes for axes in sizes if draft.allows(axes)]
    outputs: Tensors = {}
    drawn: Tensors = {}
    for axes in sizes:
        # Weights are large and have the same shapes at all sizes, so they are drawn once.
        names = [name for name, item in draft.sources.items() if item.place is not None or name not in drawn]
        drawn = {**drawn, **single.draw(axes, names)}
        drawn = {name: drawn[name] for name in draft.inputs}
        outputs = single.outputs(drawn)
        _compare(outputs, _module_outputs(draft, drawn, torch.float32), axes)
        check_finite(outputs, axes)
    return single.verified(drawn, outputs, sizes, with_module=True)


def _with_dtype(definition: dict[str, Any], dtype: str | None) -> dict[str, Any]:
    """Return a definition whose low-precision tensors and casts have `dtype`; unchanged if it is None."""
    if dtype is None:
        return definition
    tensors = {
        side: {
            name: {**spec, "dtype": dtype} if spec["dtype"] in _LOW_PRECISION else spec
            for name, spec in definition[side].items()
        }
        for side in ("inputs", "outputs")
    }
    return {**definition, **tensors, "reference": _CAST.sub(f"torch.{dtype}", definition["reference"])}


class RunnableProblem:
    """A drafted problem with its reference, ready to be called.

    Args:
        dtype: replaces the low-precision dtypes of tensors and casts; None to keep them.

    Raises:
        SkippedError: the reference cannot be loaded.
    """

    def __init__(self, draft: ProblemDraft, dtype: str | None) -> None:
        self._draft = draft
        definition = Definition.model_validate(_with_dtype(draft.definition(name="verified"), dtype))
        self._problem = Problem(
            key="corpus/verified", directory=Path(), digest="sha256:verified", definition=definition, workloads=()
        )
        try:
            self.reference = load_reference(self._problem)
        except FormatError as error:
            raise SkippedError(f"the reference does not load: {error.message}") from error

    def draw(self, axes: Mapping[str, int], names: Iterable[str]) -> Tensors:
        """Return inputs as the judge draws them."""
        definition = self.reference.definition
        restricted = definition.model_copy(update={"inputs": {name: definition.inputs[name] for name in names}})
        inputs = {name: RandomInput(type="random") for name in restricted.inputs}
        workload = Workload(uuid="verified", axes=dict(axes), inputs=dict(inputs))
        problem = self._problem.model_copy(update={"definition": restricted})
        drawn = InputSource(problem, seed=_SEED).draw(workload)
        return {name: value for name, value in drawn.items() if isinstance(value, torch.Tensor)}

    def outputs(self, inputs: Tensors) -> Tensors:
        """Return the reference's outputs by name for all inputs, in the order of its parameters.

        Raises:
            SkippedError: the reference fails.
        """
        try:
            return self.reference.outputs(list(inputs.values()))
        except FormatError as error:
            raise SkippedError(error.message.splitlines()[0][:200]) from error

    def verified(
        self, drawn: Tensors, outputs: Tensors, sizes: Sequence[Mapping[str, int]], *, with_module: bool = False
    ) -> Verified:
        """Check that each input matters and no output is constant, and return facts about the outputs.

        Args:
            drawn: inputs at the last sizes: at sequence length 1 a softmax is constant, and its gradient zero.
            outputs: outputs of the reference in float32 for these inputs.
            sizes: sizes at which the reference was compared.
            with_module: compare with the original module in the problem's own dtype.

        Raises:
            SkippedError: a check fails.
        """
        check_degenerate(outputs, sizes[-1])
        activations = [name for name, item in self._draft.sources.items() if item.source == "activation"]
        _check_each_input_matters(self, drawn, outputs, activations)
        own = RunnableProblem(self._draft, None)
        dtypes = {name: torch_dtype(spec.dtype) for name, spec in own.reference.definition.inputs.items()}
        lower = {name: value.to(dtypes[name]) for name, value in drawn.items()}
        low_outputs = own.outputs(lower)
        if with_module:
            _compare(low_outputs, _module_outputs(self._draft, lower, None), sizes[-1])
        error = max(_relative_error(low_outputs[name], outputs[name]) for name in outputs)
        return Verified(min(root_mean_square(value) for value in outputs.values()), len(sizes), error)


def _module_outputs(draft: ProblemDraft, inputs: Tensors, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Return the result of `call_module`, computed without gradients."""
    try:
        with torch.no_grad():
            return call_module(draft, inputs, dtype)
    except Exception as error:  # the module's own code
        raise SkippedError(f"the original module does not run: {error_summary(error)}") from error


def call_module(draft: ProblemDraft, inputs: Tensors, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Return the outputs of the original module, called with the problem's inputs as its weights and arguments.

    Args:
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
    sizes = {
        axis: size
        for name, spec in draft.inputs.items()
        for axis, size in zip(spec["shape"], inputs[name].shape, strict=True)
    }
    for place, leaf in enumerate(candidate.leaves):
        if place not in arguments:  # it does not affect the result
            lengths = [
                sizes.get(axis, size) if axis else size for axis, size in zip(leaf.axes, leaf.shape, strict=True)
            ]
            is_replaced = dtype is not None and leaf.dtype in {torch.bfloat16, torch.float16}
            arguments[place] = torch.zeros(lengths, dtype=dtype if is_replaced else leaf.dtype)
    tensors = [arguments[place] for place in range(len(candidate.leaves))]
    return functional_call(  # type: ignore[no-any-return]
        FlatModule(candidate), weights, (tensors,), tie_weights=True, strict=False
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


def _check_each_input_matters(
    runnable: RunnableProblem, drawn: Tensors, outputs: Tensors, activations: Collection[str]
) -> None:
    """Check that an output changes with each activation, and with each other input that has no gradient.

    A gradient alone proves nothing: the sum of scores and a far larger number has one for the scores that it hides.
    """
    for name in dict.fromkeys((*activations, *_without_gradient(runnable, drawn))):
        changed = runnable.outputs({**drawn, name: _changed(drawn[name])})
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


def _relative_error(approximate: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the 99 % quantile of the absolute difference, relative to the root mean square of the exact values."""
    if not exact.is_floating_point():
        return 0.0
    difference = (approximate.double() - exact.double()).abs().flatten()[:_QUANTILE_OF]
    return float(difference.quantile(0.99)) / max(root_mean_square(exact), 1e-30)
