"""A problem's definition from an exported graph, and what verification needs to call the original module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from harness.corpus.errors import SkippedError
from harness.corpus.exporting import ExportedModule, GraphInput
from harness.corpus.graph_hash import compute_operations, graph_hash
from harness.corpus.input_roles import distribution_of
from harness.corpus.printing import (
    FunctionPrinter,
    axis_expression,
    live_operations,
    resolved,
    used_inputs,
)
from harness.corpus.variable_names import UniqueNames, identifier, stem_of

_DTYPES = {
    torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.bool: "bool",
    torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2",
}  # fmt: skip


@dataclass(frozen=True)
class ProblemDraft:
    """A definition that is not verified yet."""

    exported: ExportedModule
    axes: dict[str, dict[str, Any]]
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    reference: str
    sources: dict[str, GraphInput]
    """Input of the problem -> the module's argument, parameter or buffer."""
    graph: str
    """Hash of the graph."""
    operations: tuple[str, ...]
    """The operators that compute, in order."""

    @property
    def variable_axes(self) -> list[str]:
        """Axes whose size each workload gives."""
        return [name for name, axis in self.axes.items() if axis["type"] == "var"]

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """True if no axis exceeds its limit."""
        return all(size <= self.exported.limits.get(axis, size) for axis, size in sizes.items())

    def definition(self, **facts: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """The content of definition.json; `facts` are its keys besides axes, tensors and reference."""
        constraints = [f"{axis} <= {size}" for axis, size in self.exported.limits.items() if axis in self.axes]
        if constraints:
            facts["constraints"] = constraints
        tensors = {"axes": self.axes, "inputs": self.inputs, "outputs": self.outputs, "reference": self.reference}
        return {**facts, **tensors}


_ARGUMENTS = {"activation", "gradient", "saved"}
"""Sources of inputs that are no weights."""
_VAGUE = {"output", "product", "total", "joined", "residual_sum", "hidden_states", "normalized"}
"""Names of local variables that do not describe the one output of a problem."""


_FACTOR_FIRST = re.compile(r"\b(?P<factor>\d+) \* (?P<axis>[a-z_]\w*(?: \* [a-z_]\w*)*)")


class _Axes:
    """Axes of a definition, made as shapes need them."""

    def __init__(self, exported: ExportedModule, constants: dict[int, str]) -> None:
        self._symbols = exported.axes
        self._constants = constants
        self.variable: dict[str, dict[str, Any]] = {}
        self.constant: dict[str, dict[str, Any]] = {}
        self.computed: dict[str, dict[str, Any]] = {}

    def shape(self, sizes: Any) -> list[str]:  # noqa: ANN401 - torch.Size with symbols
        return [self._axis(size) for size in sizes]

    def _axis(self, size: int | torch.SymInt) -> str:
        if isinstance(size, torch.SymInt):
            expression = size.node.expr
            if isinstance(expression, sympy.Integer):
                return self._axis(int(expression))
            unknown = [symbol for symbol in expression.free_symbols if symbol not in self._symbols]
            if unknown:
                raise SkippedError(f"a shape depends on values (`{unknown[0]}`)")
            for symbol in sorted(expression.free_symbols, key=str):
                self.variable.setdefault(self._symbols[symbol], {"type": "var"})
            if isinstance(expression, sympy.Symbol):
                return self._symbols[expression]
            return self._computed(axis_expression(expression, self._symbols))
        name = self._constants.get(size)
        if name is None:
            return str(size)
        self.constant[name] = {"type": "const", "value": size}
        return name

    def _computed(self, text: str) -> str:
        if text.count("//") > 1:
            raise SkippedError(f"a size is `{text}`, which is not plain arithmetic")
        for name, axis in self.computed.items():
            if axis["expression"] == text:
                return name
        words = " + ".join(sorted(text.split(" + "), key=str.isdigit))  # of `512 + sequence` the axis comes first
        words = _FACTOR_FIRST.sub(self._axis_first, words)
        for sign, word in {" * ": " times ", "//": " over ", "+": " plus ", "-": " minus "}.items():
            words = words.replace(sign, word)
        name = identifier(words)
        name = name if name not in self.computed else f"{name}_{len(self.computed)}"
        self.computed[name] = {"type": "expr", "expression": text}
        return name

    def _axis_first(self, product: re.Match[str]) -> str:
        """`axis * factor` for `factor * axis`; the factor by its name if it has one."""
        factor = int(product["factor"])
        return f"{product['axis']} * {self._constants.get(factor, factor)}"

    def all(self) -> dict[str, dict[str, Any]]:
        return {**self.variable, **self.constant, **self.computed}


def draft_problem(exported: ExportedModule, constants: dict[int, str]) -> ProblemDraft:
    """Draft a definition.

    Args:
        exported: the graph.
        constants: size -> name of its constant axis.

    Raises:
        SkippedError: the graph has no plain form in the schema.
    """
    if not exported.outputs:
        raise SkippedError("the module returns no tensor")
    operations = compute_operations(live_operations(exported))
    given = _ordered_inputs(exported)
    if not any(item.source in _ARGUMENTS for item in given):
        raise SkippedError("no argument takes part in the result")
    names = UniqueNames({*exported.axes.values(), *constants.values()})
    input_names = {item.node: names.take(_input_name(item, given)) for item in given}
    constants = _named_sizes(given, input_names, constants, names)
    axes = _Axes(exported, constants)
    reserved = {*exported.axes.values(), *constants.values()}
    shapes = {item.node: axes.shape(item.node.meta["val"].shape) for item in given}
    sizes = _size_reads(exported, input_names)
    printed = FunctionPrinter(exported, input_names, sizes).function()
    users = _users(exported)
    inputs = {
        input_names[item.node]: {
            "shape": shapes[item.node],
            "dtype": _dtype(item.node),
            "x_distribution": distribution_of(item, users.get(item.node, [])),
        }
        for item in given
    }
    outputs = _outputs(exported, printed.outputs, {*inputs, *reserved}, axes)
    sources = {input_names[item.node]: item for item in given}
    return ProblemDraft(
        exported, axes.all(), inputs, outputs, printed.source, sources, graph_hash(exported), tuple(operations)
    )


def _ordered_inputs(exported: ExportedModule) -> list[GraphInput]:
    """Inputs that the outputs depend on: arguments in their order, then weights in the order of their first use."""
    used = used_inputs(exported)
    order: dict[fx.Node, int] = {}
    for node in live_operations(exported):
        for argument in node.all_input_nodes:
            order.setdefault(resolved(argument), len(order))
    found = [item for item in exported.inputs if item.node in used]
    activations = [item for item in found if item.source in _ARGUMENTS]
    weights = [item for item in found if item.source not in _ARGUMENTS]
    return sorted(activations, key=lambda item: item.source == "activation") + sorted(
        weights, key=lambda item: order.get(item.node, 0)
    )


def _input_name(item: GraphInput, others: list[GraphInput]) -> str:
    """The argument's name; of a weight the shortest end of its path that no other has, at least two words."""
    if item.source in _ARGUMENTS:
        return "x" if item.name == "input" else identifier(item.name)
    words = item.name.split(".")
    paths = [other.name.split(".") for other in others if other is not item and other.source not in _ARGUMENTS]
    ends = [
        "_".join(words[-length:])
        for length in range(1, len(words) + 1)
        if not words[-length].isdigit() and not any(path[-length:] == words[-length:] for path in paths)
    ]
    usual = [end for end in ends if ("." in item.name and end != words[-1]) or len(words) == 1]
    for end in (*usual[:1], *ends[:1]):
        if len(end) <= _LONGEST_INPUT:
            return identifier(end)
    return _within_limit("_".join(words))


_LEAST_NAMED = 16
_MOST_DIMENSIONS = 3
"""Of an activation with features last; one with more is an image or has heads."""


def _named_sizes(
    given: list[GraphInput], input_names: dict[fx.Node, str], constants: dict[int, str], names: UniqueNames
) -> dict[int, str]:
    """Names of constant sizes, also of those that the configuration does not name: after the weight that has them."""
    named = dict(constants)
    for item in given:
        shape = item.node.meta["val"].shape
        place = -1 if item.source == "activation" else 0
        if len(shape) < 2 or not isinstance(shape[place], int) or shape[place] < _LEAST_NAMED or shape[place] in named:
            continue
        if item.source == "activation" and len(shape) <= _MOST_DIMENSIONS and "hidden_size" not in named.values():
            named[shape[place]] = names.take("hidden_size")
        elif item.source == "parameter":
            stem = input_names[item.node].removesuffix("_weight")
            named[shape[place]] = names.take(f"{stem}_{'channels' if len(shape) > 2 else 'size'}")
    return named


_LONGEST_INPUT = 40


def _within_limit(name: str) -> str:
    """An identifier without as many of its first words as exceed the limit: the last ones tell weights apart."""
    words = identifier(name, 1000).split("_")
    while len(words) > 1 and (len("_".join(words)) > _LONGEST_INPUT or words[0].isdigit()):
        words.pop(0)
    return identifier("_".join(words))


def _size_reads(exported: ExportedModule, input_names: dict[fx.Node, str]) -> dict[str, str]:
    """Axis -> expression that reads its size from the first input that has it."""
    reads: dict[str, str] = {}
    for node, name in input_names.items():
        for index, size in enumerate(node.meta["val"].shape):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                axis = exported.axes.get(size.node.expr)
                if axis is not None:
                    reads.setdefault(axis, f"{name}.shape[{index}]")
    return reads


def _users(exported: ExportedModule) -> dict[fx.Node, list[fx.Node]]:
    """Placeholder -> operations that read it, and those that read it in another dtype or shape."""
    users: dict[fx.Node, list[fx.Node]] = {}
    moved: dict[fx.Node, fx.Node] = {}
    for node in live_operations(exported):
        for argument in map(resolved, node.all_input_nodes):
            origin = moved.get(argument, argument)
            if origin.op == "placeholder":
                users.setdefault(origin, []).append(node)
                if not compute_operations([node]) and len(node.all_input_nodes) == 1:
                    moved[node] = origin
    return users


def _outputs(
    exported: ExportedModule, names: tuple[str, ...], taken: set[str], axes: _Axes
) -> dict[str, dict[str, Any]]:
    unique = UniqueNames(taken)
    outputs: dict[str, dict[str, Any]] = {}
    for node, name in zip(exported.outputs, names, strict=True):
        if resolved(node).op == "placeholder":
            raise SkippedError("an output is an input, unchanged")
        stem = stem_of(re.sub(r"_\d+$", "", name))
        wished = stem if len(names) > 1 or (stem not in taken and stem not in _VAGUE) else "output"
        outputs[unique.take(wished)] = {"shape": axes.shape(node.meta["val"].shape), "dtype": _dtype(node)}
    if len(set(names)) < len(names):
        raise SkippedError("two outputs are the same value")
    return outputs


def _dtype(node: fx.Node) -> str:
    dtype = _DTYPES.get(node.meta["val"].dtype)
    if dtype is None:
        raise SkippedError(f"the dtype {node.meta['val'].dtype} is not in the schema")
    return dtype
