"""Draft of a problem's definition from an exported graph, with the data for a call of the original module."""

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
from harness.corpus.printing import FunctionPrinter, axis_expression, live_operations, resolved, used_inputs
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
    """Operators that compute values, in order."""

    @property
    def variable_axes(self) -> list[str]:
        """Axes whose size differs between workloads."""
        return [name for name, axis in self.axes.items() if axis["type"] == "var"]

    @property
    def least_precise_dtype(self) -> str:
        """The least precise dtype of the problem's tensors."""
        dtypes = {spec["dtype"] for spec in (*self.inputs.values(), *self.outputs.values())}
        return next((dtype for dtype in ("bfloat16", "float16") if dtype in dtypes), "float32")

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Return true if no axis exceeds its limit."""
        return all(size <= self.exported.limits.get(axis, size) for axis, size in sizes.items())

    def definition(self, **facts: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Return the content of definition.json; `facts` are its keys besides axes, tensors and reference."""
        constraints = [f"{axis} <= {size}" for axis, size in self.exported.limits.items() if axis in self.axes]
        if constraints:
            facts["constraints"] = constraints
        tensors = {"axes": self.axes, "inputs": self.inputs, "outputs": self.outputs, "reference": self.reference}
        return {**facts, **tensors}


_ARGUMENTS = {"activation", "gradient", "saved"}
"""Sources of inputs that are not weights."""
_VAGUE = {"output", "product", "total", "joined", "residual_sum", "hidden_states", "normalized"}
"""Names of local variables that do not describe the single output of a problem."""


_FACTOR_FIRST = re.compile(r"\b(?P<factor>\d+) \* (?P<axis>[a-z_]\w*(?: \* [a-z_]\w*)*)")


class _Axes:
    """Axes of a definition; the conversion of shapes adds the axes that they use."""

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
            unnamed = [symbol for symbol in expression.free_symbols if symbol not in self._symbols]
            if unnamed:
                raise SkippedError(f"a shape depends on values (`{unnamed[0]}`)")
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
        """Return `axis * factor` for `factor * axis`, with the factor's name if it has one."""
        factor = int(product["factor"])
        return f"{product['axis']} * {self._constants.get(factor, factor)}"


def draft_problem(exported: ExportedModule, constants: dict[int, str]) -> ProblemDraft:
    """Return the draft of a definition.

    Args:
        constants: size -> name of its constant axis.

    Raises:
        SkippedError: the schema cannot represent the graph.
    """
    if not exported.outputs:
        raise SkippedError("the module returns no tensor")
    operations = compute_operations(live_operations(exported))
    graph_inputs = _ordered_inputs(exported)
    if not any(item.source in _ARGUMENTS for item in graph_inputs):
        raise SkippedError("no argument takes part in the result")
    names = UniqueNames({*exported.axes.values(), *constants.values()})
    input_names = {item.node: names.take(_input_name(item, graph_inputs)) for item in graph_inputs}
    constants = _named_sizes(graph_inputs, input_names, constants, names)
    axes = _Axes(exported, constants)
    reserved = {*exported.axes.values(), *constants.values()}
    shapes = {item.node: axes.shape(item.node.meta["val"].shape) for item in graph_inputs}
    sizes = _size_reads(exported, input_names)
    source, output_variables = FunctionPrinter(exported, input_names, sizes).function()
    users = _users(exported)
    inputs = {
        input_names[item.node]: {
            "shape": shapes[item.node],
            "dtype": _dtype(item.node),
            "x_distribution": distribution_of(item, users.get(item.node, [])),
        }
        for item in graph_inputs
    }
    outputs = _outputs(exported, output_variables, {*inputs, *reserved}, axes)
    sources = {input_names[item.node]: item for item in graph_inputs}
    all_axes = {**axes.variable, **axes.constant, **axes.computed}
    return ProblemDraft(exported, all_axes, inputs, outputs, source, sources, graph_hash(exported), tuple(operations))


def _ordered_inputs(exported: ExportedModule) -> list[GraphInput]:
    """Return the inputs that affect the outputs: arguments in their order, then weights by their first use."""
    used = used_inputs(exported)
    arguments = [item for item in exported.inputs if item.source in _ARGUMENTS and item.node in used]
    arguments.sort(key=lambda item: item.source == "activation")
    weights = {item.node: item for item in exported.inputs if item.source not in _ARGUMENTS}
    return arguments + [weights[node] for node in used if node in weights]


def _input_name(item: GraphInput, all_items: list[GraphInput]) -> str:
    """Return the name of an argument; for a weight the shortest unique suffix of its path, of two words if possible."""
    if item.source in _ARGUMENTS:
        return "x" if item.name == "input" else identifier(item.name)
    words = item.name.split(".")
    weights = [weight for weight in all_items if weight.source not in _ARGUMENTS and weight is not item]
    paths = [weight.name.split(".") for weight in weights]
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


_MIN_NAMED_SIZE = 16
_MAX_DIMENSIONS = 3
"""Maximum dimensions of an activation whose last dimension is the features; one with more is an image or has heads."""


def _named_sizes(
    graph_inputs: list[GraphInput], input_names: dict[fx.Node, str], constants: dict[int, str], names: UniqueNames
) -> dict[int, str]:
    """Return the names of constant sizes; a size that the configuration does not name gets the name of its weight."""
    named = dict(constants)
    for item in graph_inputs:
        shape = item.node.meta["val"].shape
        place = -1 if item.source == "activation" else 0
        size = shape[place] if len(shape) >= 2 else None
        if not isinstance(size, int) or size < _MIN_NAMED_SIZE or size in named:
            continue
        if item.source == "activation" and len(shape) <= _MAX_DIMENSIONS and "hidden_size" not in named.values():
            named[size] = names.take("hidden_size")
        elif item.source == "parameter":
            stem = input_names[item.node].removesuffix("_weight")
            named[size] = names.take(f"{stem}_{'channels' if len(shape) > 2 else 'size'}")
    return named


_LONGEST_INPUT = 40


def _within_limit(name: str) -> str:
    """Return an identifier without its first words if it exceeds the limit: the last words distinguish weights."""
    words = identifier(name, 1000).split("_")
    while len(words) > 1 and (len("_".join(words)) > _LONGEST_INPUT or words[0].isdigit()):
        words.pop(0)
    return identifier("_".join(words))


def _size_reads(exported: ExportedModule, input_names: dict[fx.Node, str]) -> dict[str, str]:
    """Map each axis to an expression that reads its size from the first input with this axis."""
    reads: dict[str, str] = {}
    for node, name in input_names.items():
        for index, size in enumerate(node.meta["val"].shape):
            if isinstance(size, torch.SymInt) and size.node.expr in exported.axes:
                reads.setdefault(exported.axes[size.node.expr], f"{name}.shape[{index}]")
    return reads


def _users(exported: ExportedModule) -> dict[fx.Node, list[fx.Node]]:
    """Map each placeholder to the operations that read it, also in another dtype or shape."""
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


def _outputs(exported: ExportedModule, names: list[str], reserved: set[str], axes: _Axes) -> dict[str, dict[str, Any]]:
    unique = UniqueNames(reserved)
    outputs: dict[str, dict[str, Any]] = {}
    for node, name in zip(exported.outputs, names, strict=True):
        if resolved(node).op == "placeholder":
            raise SkippedError("an output is an input, unchanged")
        stem = stem_of(re.sub(r"_\d+$", "", name))
        wished = stem if len(names) > 1 or (stem not in reserved and stem not in _VAGUE) else "output"
        outputs[unique.take(wished)] = {"shape": axes.shape(node.meta["val"].shape), "dtype": _dtype(node)}
    if len(set(names)) < len(names):
        raise SkippedError("two outputs are the same value")
    return outputs


def _dtype(node: fx.Node) -> str:
    dtype = _DTYPES.get(node.meta["val"].dtype)
    if dtype is None:
        raise SkippedError(f"the dtype {node.meta['val'].dtype} is not in the schema")
    return dtype
