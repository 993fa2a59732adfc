"""Backward problems of a verified forward problem: drafted, and verified against autograd of the original module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch.func import functional_call

from harness.corpus.backward import export_backward, saved_form, saved_values
from harness.corpus.draft import ProblemDraft, draft_problem
from harness.corpus.errors import SkippedError, error_summary
from harness.corpus.exporting import FlatModule
from harness.corpus.verification import (
    RunnableProblem,
    Tensors,
    Verified,
    as_declared,
    check_degenerate,
    check_each_input_matters,
    check_sizes,
    draw,
    in_dtype,
    module_arguments,
    relative_error,
    root_mean_square,
    run_reference,
    shown,
)
from harness.corpus.workloads import largest_tensor

_CLOSE = 2e-4
"""A tenth of the largest allowed error of a gradient in float32, relative to its root mean square. Autograd sums in
another order than the reference."""
_ROUNDING = 1e-2
"""Smallest scale of a comparison, as a share of the largest gradient's root mean square. At sequence length 1 the
gradient of a query consists of the rounding errors of its sums."""
_MAX_ELEMENTS = 2**25
"""Maximum elements of one tensor at the sizes of the checks: attention over 1500 frames takes minutes."""


def backward_drafts(forward: ProblemDraft, constants: dict[int, str]) -> Iterator[tuple[str, ProblemDraft, Verified]]:
    """Yield the form (`recompute`, then `saved`), the draft and the facts of each verified backward problem.

    Args:
        forward: the forward problem.
        constants: size -> name of its constant axis.

    Raises:
        SkippedError: a form cannot be exported, drafted or verified; forms yielded before remain valid.
    """
    names = {item.node: name for name, item in forward.sources.items()}
    exported = export_backward(forward.exported, names)
    recompute = draft_problem(exported, constants)
    yield "recompute", recompute, _verify_recompute(forward, recompute)
    saved = draft_problem(
        saved_form(exported, {item.node: name for name, item in recompute.sources.items()}), constants
    )
    yield "saved", saved, _verify_saved(recompute, saved, constants)


def _verify_recompute(forward: ProblemDraft, draft: ProblemDraft) -> Verified:
    """Compare the reference with autograd of the original module at several sizes."""
    single, sizes = in_dtype(draft, "float32"), check_sizes(draft.variable_axes)
    elements = max(largest_tensor(draft, axes) for axes in sizes)
    if elements > _MAX_ELEMENTS:
        raise SkippedError(f"a tensor of {elements:,} elements is too large to verify gradients on this machine")
    for axes in sizes:
        drawn = draw(single, axes, list(draft.inputs))
        outputs = run_reference(single, drawn)
        _compare_gradients(forward, draft, drawn, outputs, shown(axes))
    check_degenerate(outputs, sizes[-1])  # at sequence length 1 the gradient of a softmax is zero
    return _facts(draft, single, drawn, outputs, len(sizes))


def _facts(draft: ProblemDraft, single: RunnableProblem, drawn: Tensors, outputs: Tensors, shapes: int) -> Verified:
    check_each_input_matters(single, drawn, outputs)
    own = in_dtype(draft, None)
    low_precision = run_reference(own, {name: as_declared(value, own, name) for name, value in drawn.items()})
    error = max(relative_error(low_precision[name], outputs[name]) for name in outputs)
    return Verified(min(root_mean_square(value) for value in outputs.values()), shapes, error)


def _compare_gradients(
    forward: ProblemDraft, draft: ProblemDraft, drawn: Tensors, outputs: Tensors, where: str
) -> None:
    by_source = {(item.source, item.name, item.place): drawn[name] for name, item in draft.sources.items()}
    leaves: Tensors = {}
    for name, item in forward.sources.items():
        # The gradients may not depend on an input such as a bias. Then the reference has no such input; zeros are used.
        value = by_source.get((item.source, item.name, item.place))
        value = torch.zeros(item.node.meta["val"].shape) if value is None else value
        leaves[name] = value.detach().requires_grad_() if f"grad_{name}" in outputs else value
    incoming = {item.place: drawn[name] for name, item in draft.sources.items() if item.source == "gradient"}
    weights, tensors = module_arguments(forward, leaves, torch.float32)
    differentiated = [name for name in leaves if f"grad_{name}" in outputs]
    try:
        with torch.enable_grad():
            returned = functional_call(
                FlatModule(forward.exported.candidate), weights, (tensors,), tie_weights=True, strict=False
            )
            gradients = torch.autograd.grad(
                [returned[place] for place in incoming],
                [leaves[name] for name in differentiated],
                list(incoming.values()),
            )
    except Exception as error:  # the module's own code
        raise SkippedError(f"the module has no gradients: {error_summary(error)}") from error
    # A gradient that consists of rounding errors is compared relative to the scale of the other gradients.
    floor = _ROUNDING * max(root_mean_square(gradient) for gradient in gradients)
    for name, gradient in zip(differentiated, gradients, strict=True):
        value = outputs[f"grad_{name}"]
        if value.shape != gradient.shape or value.dtype != gradient.dtype:
            raise SkippedError(f"`grad_{name}` has another shape or dtype than autograd's, at {where}")
        difference = (value - gradient).abs()
        if float(difference.max()) > 10 * _CLOSE * max(root_mean_square(gradient), floor):
            raise SkippedError(f"`grad_{name}` differs from autograd's, at {where}")


def _verify_saved(recompute: ProblemDraft, saved: ProblemDraft, constants: dict[int, str]) -> Verified:
    """Compare the saved form bitwise with the form that computes the forward pass again, on its saved results."""
    exported = recompute.exported
    saved_nodes = saved_values(exported)
    combined = draft_problem(dataclasses.replace(exported, outputs=(*exported.outputs, *saved_nodes)), constants)
    places = {name: item.place for name, item in saved.sources.items() if item.source == "saved"}
    single, combined_float32 = in_dtype(saved, "float32"), in_dtype(combined, "float32")
    sizes = check_sizes(saved.variable_axes)
    for axes in sizes:
        drawn = draw(combined_float32, axes, list(combined.inputs))
        results = list(run_reference(combined_float32, drawn).values())
        expected, forward = results[: len(exported.outputs)], results[len(exported.outputs) :]
        saved_inputs = {
            name: drawn[name] if (place := places.get(name)) is None else forward[place] for name in saved.inputs
        }
        outputs = run_reference(single, saved_inputs)
        for (name, value), expected_value in zip(outputs.items(), expected, strict=True):
            if not torch.equal(value, expected_value):
                raise SkippedError(f"`{name}` differs from the form that computes the forward pass again")
    drawn = draw(single, sizes[-1], list(saved.inputs))
    outputs = run_reference(single, drawn)
    check_degenerate(outputs, sizes[-1])
    return _facts(saved, single, drawn, outputs, len(sizes))
