"""Backward graphs: the gradients of an exported module, which recompute the forward pass or read its saved results."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from harness.corpus.errors import SkippedError, error_summary
from harness.corpus.exporting import ExportedModule, GraphInput
from harness.corpus.graph_hash import compute_operations
from harness.corpus.printing import is_size, live_operations, resolved
from harness.corpus.variable_names import operation_of, wished_names

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


def export_backward(forward: ExportedModule, input_names: dict[fx.Node, str]) -> ExportedModule:
    """Return the graph of the gradients of a module's floating-point inputs, which includes the forward pass.

    Args:
        forward: the exported module.
        input_names: placeholder -> name of the forward problem's input.

    Raises:
        SkippedError: the gradients cannot be traced.
    """
    placeholders = [node for node in forward.graph.nodes if node.op == "placeholder"]
    tensors = [node for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
    graph, differentiated = _trace(forward, placeholders, tensors, input_names)
    traced = [node for node in graph.nodes if node.op == "placeholder"]
    by_node = {item.node: item for item in forward.inputs}
    inputs = [
        dataclasses.replace(by_node[old], node=new) for old, new in zip(tensors, traced, strict=False) if old in by_node
    ]
    constants = {
        new.name: forward.constants[old.name]
        for old, new in zip(tensors, traced, strict=False)
        if old.name in forward.constants
    }
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
    return ExportedModule(
        forward.candidate, graph, tuple(inputs), tuple(named), forward.axes, constants, forward.limits, named
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
        if node.op != "call_function":
            continue
        operation = operation_of(node)
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if source is None:
            continue
        if operation in {"detach", "alias"}:
            node.replace_all_uses_with(source)
        elif operation == "t" and source.op == "call_function" and operation_of(source) == "t":
            node.replace_all_uses_with(source.args[0])
        elif operation == "pow" and node.args[1] == 1:
            node.replace_all_uses_with(source)


def saved_form(backward: ExportedModule, input_names: dict[fx.Node, str]) -> ExportedModule:
    """Return the graph of the same gradients from saved results of the forward pass.

    The operations of the backward pass stay, and the forward results that they read become inputs. Results of
    operations that only move data are computed again from their operands.

    Args:
        backward: the graph that computes the forward pass again.
        input_names: placeholder -> name of its input.

    Raises:
        SkippedError: the backward pass reads no saved result, so that both forms are the same.
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
    return ExportedModule(
        backward.candidate, graph, (*inputs, *saved), outputs, backward.axes, backward.constants, backward.limits, names
    )


def saved_values(backward: ExportedModule) -> tuple[fx.Node, ...]:
    """Return the forward results that the saved form reads, in the order of its saved inputs."""
    return tuple(_boundary(backward))


def _boundary(backward: ExportedModule) -> list[fx.Node]:
    """Return the forward results that the backward pass reads, traced back through operations that only move data.

    Operations of the forward pass have the stack trace of the module's code; those of the backward pass have none.
    """
    ancestors = _ancestors(backward.outputs)
    boundary: dict[fx.Node, None] = {}
    queue = [
        source
        for node in backward.graph.nodes
        if node in ancestors and node.op == "call_function" and not is_size(node) and not _is_forward(node)
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


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    visited: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in visited:
            visited.add(node)
            stack += list(node.all_input_nodes)
    return visited
