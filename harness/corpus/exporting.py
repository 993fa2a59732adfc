"""Export of a submodule with torch.export to a graph whose batch and sequence dimensions are symbols."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sympy
import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from harness.corpus.candidates import CandidateModule
from harness.corpus.errors import SkippedError, error_summary

InputSource = Literal["activation", "parameter", "buffer", "gradient", "saved"]


@dataclass(frozen=True)
class GraphInput:
    """One placeholder of an exported graph that becomes an input of the problem."""

    node: fx.Node
    source: InputSource
    name: str
    """Name of the argument, or dotted path of the parameter or buffer below the module."""
    place: int | None = None
    """Index: of an activation among the candidate's leaves, of a gradient among the outputs, of a saved value among the
    saved values."""


@dataclass(frozen=True)
class ExportedModule:
    """A submodule as a graph of PyTorch operators."""

    candidate: CandidateModule
    graph: fx.Graph
    inputs: tuple[GraphInput, ...]
    outputs: tuple[fx.Node, ...]
    axes: dict[sympy.Symbol, str]
    """Symbol of a varying size -> name of its axis."""
    constants: dict[str, torch.Tensor]
    """Placeholder -> small tensor that is a constant in the module's code."""
    limits: dict[str, int] = field(default_factory=dict)
    """Axis -> largest size, such as the length of a table of positions."""
    names: dict[fx.Node, str] = field(default_factory=dict)
    """Required names of some values."""


class FlatModule(nn.Module):
    """A wrapper of a module that takes a list of tensors and returns a list of tensors."""

    def __init__(self, candidate: CandidateModule) -> None:
        super().__init__()
        self.module = candidate.module
        self._candidate = candidate

    def forward(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the problem's outputs among the tensors that the module returns, in order."""
        args, kwargs = self._candidate.arguments(tensors)
        returned = [leaf for leaf in pytree.tree_leaves(self.module(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
        places = self._candidate.output_places
        return returned if places is None else [returned[place] for place in places]


def export_module(candidate: CandidateModule) -> ExportedModule:
    """Return the graph of a candidate, with its varying dimensions as symbols.

    Attention probabilities that the module returns beside its result are no outputs of the problem: a fused kernel
    never writes them to memory, and serving code does not ask for them.

    Raises:
        SkippedError: the candidate cannot be exported, or only for one size.
    """
    exported = _export_all_outputs(candidate)
    output_places = tuple(place for place, node in enumerate(exported.outputs) if not is_attention_probabilities(node))
    if len(output_places) in {0, len(exported.outputs)}:
        return exported
    return _export_all_outputs(replace(candidate, output_places=output_places))


def is_attention_probabilities(node: fx.Node) -> bool:
    """Return true if a value is a softmax, perhaps cast to another dtype, that a matrix product consumes."""
    consumed = False
    while node.op == "call_function" and node.target not in _SOFTMAX:
        if node.target not in _SAME_VALUES:
            return False
        consumed = consumed or _feeds_product(node)
        node = node.all_input_nodes[0]
    return node.op == "call_function" and (consumed or _feeds_product(node))


_aten = torch.ops.aten
_SOFTMAX = {_aten.softmax.int, _aten._softmax.default}  # noqa: SLF001
_SAME_VALUES = {
    _aten.to.dtype, _aten.to.dtype_layout, _aten._to_copy.default, _aten.type_as.default, _aten.clone.default,  # noqa: SLF001
    _aten.dropout.default, _aten.alias.default, _aten.detach.default, _aten.contiguous.default,
}  # fmt: skip
_SHAPES = {_aten.expand.default, _aten.view.default, _aten.reshape.default, _aten.transpose.int, _aten.permute.default}
_PRODUCTS = {_aten.matmul.default, _aten.bmm.default, _aten.einsum.default}


def _feeds_product(node: fx.Node) -> bool:
    return any(
        user.target in _PRODUCTS or (user.target in _SAME_VALUES | _SHAPES and _feeds_product(user))
        for user in node.users
    )


def _export_all_outputs(candidate: CandidateModule) -> ExportedModule:
    dims = {axis: Dim(axis) for leaf in candidate.leaves for axis in leaf.axes if axis}
    try:
        program = _export(candidate, dims)
    except Exception as first:  # noqa: BLE001 - torch.export raises whatever the module's code raises
        try:
            program = _export(candidate, dict.fromkeys(dims, Dim.AUTO))
        except Exception:  # noqa: BLE001 - as above
            raise SkippedError(f"torch.export fails: {error_summary(first)}") from first
    operators = [node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]  # noqa: SLF001
    if any(operator._schema.is_mutable for operator in operators):  # noqa: SLF001
        program = program.run_decompositions({})  # an empty table only makes the graph functional
        _plain_batch_norms(program.graph)
    return _exported(candidate, program)


def _export(candidate: CandidateModule, dims: dict[str, Any]) -> ExportedProgram:
    tensors = [torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") for leaf in candidate.leaves]
    shapes = [{index: dims[axis] for index, axis in enumerate(leaf.axes) if axis} for leaf in candidate.leaves]
    with torch.no_grad():
        return torch.export.export(FlatModule(candidate), (tensors,), dynamic_shapes=(shapes,), strict=False)


def _plain_batch_norms(graph: fx.Graph) -> None:
    """Replace the functional form of a batch norm in evaluation mode, which has three results, by `batch_norm`."""
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten._native_batch_norm_legit_no_training.default:  # noqa: SLF001
            continue
        values, weight, bias, mean, variance, momentum, eps = node.args
        for user in list(node.users):
            if user.args[1] == 0:
                user.target = torch.ops.aten.batch_norm.default
                user.args = (values, weight, bias, mean, variance, False, momentum, eps, False)
                user.meta = {**node.meta, "val": node.meta["val"][0]}


def _exported(candidate: CandidateModule, program: ExportedProgram) -> ExportedModule:
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs: list[GraphInput] = []
    constants: dict[str, torch.Tensor] = {}
    leaves = enumerate(candidate.leaves)
    for spec in program.graph_signature.input_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if spec.kind is InputKind.USER_INPUT:
            place, leaf = next(leaves)
            if node is not None:
                inputs.append(GraphInput(node, "activation", leaf.name, place))
        elif spec.kind in {InputKind.PARAMETER, InputKind.BUFFER} and node is not None:
            source: InputSource = "parameter" if spec.kind is InputKind.PARAMETER else "buffer"
            inputs.append(GraphInput(node, source, str(spec.target).removeprefix("module.")))
        elif spec.kind is InputKind.CONSTANT_TENSOR and node is not None:
            constants[node.name] = _constant(program.constants[str(spec.target)])
        else:
            raise SkippedError(f"the graph has an input of kind {spec.kind.name}")
    outputs = tuple(_returned(program.graph))
    axes = _axes_of(candidate, inputs)
    lengths = {size for item in inputs if item.place is None for size in item.node.meta["val"].shape}
    limits = _limits(program, axes, lengths)
    return ExportedModule(candidate, program.graph, tuple(inputs), outputs, axes, constants, limits)


_MIN_SIZE = 2
"""torch.export assumes that a varying dimension is neither 0 nor 1; verification also runs with 1."""


_PADDING = 2
"""Entries of a table of positions that are not positions."""


def _limits(program: ExportedProgram, axes: dict[sympy.Symbol, str], lengths: set[Any]) -> dict[str, int]:
    """Return the largest size of each axis that the length of a weight limits.

    Raises:
        SkippedError: the graph is valid for some sizes only, because the module's code compares a size.
    """
    limits: dict[str, int] = {}
    for symbol, axis in axes.items():
        allowed = program.range_constraints.get(symbol)
        if allowed is None:
            continue
        limited = allowed.upper < sys.maxsize // 2
        if limited and any(int(allowed.upper) + padding in lengths for padding in range(_PADDING + 1)):
            limits[axis] = int(allowed.upper)
        elif limited or allowed.lower > _MIN_SIZE:
            raise SkippedError(f"the graph holds for `{axis}` from {allowed.lower} to {allowed.upper} only")
    return limits


_MAX_CONSTANT_ELEMENTS = 16


def _constant(value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.is_meta or value.numel() > _MAX_CONSTANT_ELEMENTS:
        raise SkippedError("the module holds a tensor that is neither a parameter nor a buffer")
    return value.detach().as_subclass(torch.Tensor).clone()


def _returned(graph: fx.Graph) -> Iterator[fx.Node]:
    (output,) = [node for node in graph.nodes if node.op == "output"]
    for value in pytree.tree_leaves(output.args):
        if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            raise SkippedError("an output is not a tensor")
        yield value


def _axes_of(candidate: CandidateModule, inputs: list[GraphInput]) -> dict[sympy.Symbol, str]:
    """Return the axis of each symbol, from the dimensions of the arguments.

    Raises:
        SkippedError: torch.export fixed a dimension that varies.
    """
    axes: dict[sympy.Symbol, str] = {}
    for item in inputs:
        if item.place is None:
            continue
        for size, axis in zip(item.node.meta["val"].shape, candidate.leaves[item.place].axes, strict=True):
            if axis is None:
                continue
            expression = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
            if expression.is_number:
                raise SkippedError(f"the module works for one size of `{axis}` only ({size})")
            if isinstance(expression, sympy.Symbol) and expression not in axes:
                same_axis_count = sum(name == axis or name.startswith(f"{axis}_") for name in axes.values())
                axes[expression] = axis if not same_axis_count else f"{axis}_{same_axis_count + 1}"
    return axes
