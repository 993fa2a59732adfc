"""Backward problems: the gradients of an exported module, which recompute the forward pass or read its saved results.

They are verified against autograd of the original module.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from harness.corpus.draft import ProblemDraft, draft_problem
from harness.corpus.errors import SkippedError, error_summary
from harness.corpus.exporting import ExportedModule, GraphInput
from harness.corpus.graph_hash import compute_operations
from harness.corpus.printing import ancestors, is_size, live_operations, resolved
from harness.corpus.variable_names import operation_of, wished_names
from harness.corpus.verification import RunnableProblem, Tensors, Verified, call_module, root_mean_square
from harness.corpus.workloads import check_sizes, largest_tensor, shown

_CONSTANT = re.compile(r"(^|_)(cos|sin)$|mask|position|inv_freq|(^|_)(k|key)(_proj|_lin)?_bias$")
"""Names of inputs whose gradient no training step needs. The gradient of a key's bias is zero, because a softmax
ignores the bias."""
_BACKWARD_OPERATORS = (
    "silu_backward", "gelu_backward", "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward", "_softmax_backward_data", "_log_softmax_backward_data", "tanh_backward",
    "sigmoid_backward", "threshold_backward", "slice_backward", "select_backward", "softplus_backward",
    "hardswish_backward", "hardsigmoid_backward", "leaky_relu_backward", "elu_backward", "_safe_softmax",
    "_fused_rms_norm", "_fused_rms_norm_backward", "unfold_backward", "logit_backward", "mish_backward",
)  # fmt: skip
"""ATen operators without a public PyTorch function; torch's decompositions replace them."""


def _export_backward(forward: ExportedModule, input_names: dict[fx.Node, str]) -> ExportedModule:
    """Return the graph of the gradients of a module's floating-point inputs, which includes the forward pass."""
    placeholders = [node for node in forward.graph.nodes if node.op == "placeholder"]
    tensors = [node for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
    graph, differentiated = _trace(forward, placeholders, tensors, input_names)
    traced = [node for node in graph.nodes if node.op == "placeholder"]
    by_node = {item.node: item for item in forward.inputs}
    pairs = list(zip(tensors, traced, strict=False))
    inputs = [dataclasses.replace(by_node[old], node=new) for old, new in pairs if old in by_node]
    constants = {new.name: forward.constants[old.name] for old, new in pairs if old.name in forward.constants}
    output_gradients = traced[len(tensors) :]
    single = len(output_gradients) == 1
    inputs += [
        GraphInput(node, "gradient", "grad_output" if single else f"grad_output_{place}", place)
        for place, node in enumerate(output_gradients)
    ]
    (output,) = [node for node in graph.nodes if node.op == "output"]
    gradients = list(pytree.tree_leaves(output.args))
    named = {
        resolved(gradient): f"grad_{input_names[old]}"
        for old, gradient in zip(differentiated, gradients, strict=True)
        if isinstance(gradient, fx.Node)
    }
    order = list(input_names.values())
    named = dict(sorted(named.items(), key=lambda item: order.index(item[1].removeprefix("grad_"))))
    if not named:
        raise SkippedError("no input has a gradient")
    return dataclasses.replace(
        forward, graph=graph, inputs=tuple(inputs), outputs=tuple(named), constants=constants, names=named
    )


def _trace(
    forward: ExportedModule, placeholders: list[fx.Node], tensors: list[fx.Node], input_names: dict[fx.Node, str]
) -> tuple[fx.Graph, list[fx.Node]]:
    """Return the traced graph, and the inputs whose gradients it returns."""
    differentiated = [
        node
        for node in tensors
        if node in input_names and node.meta["val"].is_floating_point() and not _CONSTANT.search(input_names[node])
    ]
    module = fx.GraphModule(torch.nn.Module(), forward.graph)

    def gradients(inputs: list[torch.Tensor], incoming: list[torch.Tensor]) -> list[torch.Tensor | None]:
        leaves = {
            node: value.detach().requires_grad_(node in differentiated)
            for node, value in zip(tensors, inputs, strict=True)
        }
        arguments = [leaves.get(node, node.meta.get("val")) for node in placeholders]
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused kernels have no decomposed derivative
            returned = pytree.tree_leaves(fx.Interpreter(module).run(*arguments))
            pairs = [(value, grad) for value, grad in zip(returned, incoming, strict=True) if value.requires_grad]
            return list(
                torch.autograd.grad(
                    [value for value, _ in pairs],
                    [leaves[node] for node in differentiated],
                    [grad for _, grad in pairs],
                    allow_unused=True,
                )
            )

    values = [node.meta["val"] for node in tensors]
    packets = [getattr(torch.ops.aten, name) for name in _BACKWARD_OPERATORS if hasattr(torch.ops.aten, name)]
    table: dict[Any, Any] = dict(get_decompositions(packets))
    try:
        with values[0].fake_mode, fx.traceback.preserve_node_meta():
            incoming = [torch.empty_like(node.meta["val"]) for node in forward.outputs]
            traced = make_fx(gradients, tracing_mode="real", decomposition_table=table)(values, incoming)
    except Exception as error:  # the module's own code
        raise SkippedError(f"the gradients cannot be traced: {error_summary(error)}") from error
    _make_functional(traced.graph)
    _simplify(traced.graph)
    return traced.graph, differentiated


def _make_functional(graph: fx.Graph) -> None:
    """Replace in-place operators by the functional ones; later operations read their results."""
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        name = operation_of(node) if node.op == "call_function" else ""
        functional = getattr(torch.ops.aten, name.removesuffix("_"), None)
        if not name.endswith("_") or name.endswith("__") or functional is None:
            continue
        node.target = getattr(functional, node.target._overloadname)  # noqa: SLF001 - the overload's only name
        for later in nodes[index + 1 :]:
            later.replace_input_with(node.args[0], node)


def _simplify(graph: fx.Graph) -> None:
    """Remove detachments, pairs of transpositions and first powers."""
    for node in list(graph.nodes):
        source = node.args[0] if node.op == "call_function" and node.args else None
        if not isinstance(source, fx.Node):
            continue
        operation = operation_of(node)
        if operation in {"detach", "alias"} or (operation == "pow" and node.args[1] == 1):
            node.replace_all_uses_with(source)
        elif operation == "t" and source.op == "call_function" and operation_of(source) == "t":
            node.replace_all_uses_with(source.args[0])


def _saved_form(backward: ExportedModule, input_names: dict[fx.Node, str]) -> ExportedModule:
    """Return the graph of the same gradients from saved results of the forward pass.

    The operations of the backward pass stay, and the forward results that they read become inputs. Results of
    operations that only move data are computed again from their operands.
    """
    boundary = _boundary(backward)
    if not boundary:
        raise SkippedError("the backward pass reads nothing that the forward pass computes")
    words = wished_names(live_operations(backward), input_names)
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in backward.graph.nodes:
        if node.op == "output":
            continue
        if node in boundary:
            copied[node] = graph.placeholder(node.name)
            copied[node].meta = {**node.meta, "saved_operation": operation_of(node)}
        else:
            copied[node] = graph.node_copy(node, lambda source: copied[source])
    inputs = [dataclasses.replace(item, node=copied[item.node]) for item in backward.inputs]
    saved = [GraphInput(copied[node], "saved", f"saved_{words[node]}", place) for place, node in enumerate(boundary)]
    outputs = tuple(copied[node] for node in backward.outputs)
    names = {copied[node]: name for node, name in backward.names.items()}
    return dataclasses.replace(backward, graph=graph, inputs=(*inputs, *saved), outputs=outputs, names=names)


def _boundary(backward: ExportedModule) -> list[fx.Node]:
    """Return the forward results that the backward pass reads, traced back through operations that only move data.

    Operations of the forward pass have the stack trace of the module's code; those of the backward pass have none.
    """
    sources = ancestors(backward.outputs, lambda node: node.all_input_nodes)
    boundary: dict[fx.Node, None] = {}
    queue = [
        source
        for node in backward.graph.nodes
        if node in sources and node.op == "call_function" and not is_size(node) and not _is_forward(node)
        for source in node.all_input_nodes
        if _is_forward(source)
    ]
    while queue:
        node = queue.pop(0)
        if node.op == "placeholder" or is_size(node):
            continue
        if compute_operations([node]) or operation_of(node) == "getitem":
            boundary.setdefault(node)
        else:
            queue += list(node.all_input_nodes)
    order = {node: index for index, node in enumerate(backward.graph.nodes)}
    return sorted(boundary, key=lambda node: order[node])


def _is_forward(node: fx.Node) -> bool:
    return bool(node.meta.get("stack_trace"))


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
        constants: size -> name of its constant axis.

    Raises:
        SkippedError: a form cannot be exported, drafted or verified; forms yielded before remain valid.
    """
    names = {item.node: name for name, item in forward.sources.items()}
    exported = _export_backward(forward.exported, names)
    recompute = draft_problem(exported, constants)
    yield "recompute", recompute, _verify_recompute(forward, recompute)
    saved = draft_problem(
        _saved_form(exported, {item.node: name for name, item in recompute.sources.items()}), constants
    )
    yield "saved", saved, _verify_saved(recompute, saved, constants)


def _verify_recompute(forward: ProblemDraft, draft: ProblemDraft) -> Verified:
    """Compare the reference with autograd of the original module at several sizes."""
    single, sizes = RunnableProblem(draft, "float32"), check_sizes(draft.variable_axes)
    elements = max(largest_tensor(draft, axes) for axes in sizes)
    if elements > _MAX_ELEMENTS:
        raise SkippedError(f"a tensor of {elements:,} elements is too large to verify gradients on this machine")
    for axes in sizes:
        drawn = single.draw(axes, draft.inputs)
        outputs = single.outputs(drawn)
        _compare_gradients(forward, draft, drawn, outputs, shown(axes))
    return single.verified(drawn, outputs, sizes)


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
    incoming = {
        item.place: drawn[name]
        for name, item in draft.sources.items()
        if item.source == "gradient" and item.place is not None
    }
    differentiated = [name for name in leaves if f"grad_{name}" in outputs]
    try:
        with torch.enable_grad():
            returned = call_module(forward, leaves, torch.float32)
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
    combined = draft_problem(
        dataclasses.replace(exported, outputs=(*exported.outputs, *_boundary(exported))), constants
    )
    places = {name: item.place for name, item in saved.sources.items() if item.source == "saved"}
    single, combined_float32 = RunnableProblem(saved, "float32"), RunnableProblem(combined, "float32")
    sizes = check_sizes(saved.variable_axes)
    for axes in sizes:
        drawn = combined_float32.draw(axes, combined.inputs)
        results = list(combined_float32.outputs(drawn).values())
        expected, forward = results[: len(exported.outputs)], results[len(exported.outputs) :]
        saved_inputs = {
            name: drawn[name] if (place := places.get(name)) is None else forward[place] for name in saved.inputs
        }
        outputs = single.outputs(saved_inputs)
        for (name, value), expected_value in zip(outputs.items(), expected, strict=True):
            if not torch.equal(value, expected_value):
                raise SkippedError(f"`{name}` differs from the form that computes the forward pass again")
    drawn = single.draw(sizes[-1], saved.inputs)
    outputs = single.outputs(drawn)
    return single.verified(drawn, outputs, sizes)
