"""Printer of an exported graph as a plain PyTorch function: one statement per line, weights as inputs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from harness.corpus.errors import SkippedError
from harness.corpus.exporting import ExportedModule
from harness.corpus.operators import expression, is_identity
from harness.corpus.variable_names import UniqueNames, wished_names

_LINE = 110
_MAX_PARTS = 8
"""Maximum results of an operator that are unpacked into variables; more are indexed."""


def live_operations(exported: ExportedModule) -> list[fx.Node]:
    """Return the operator calls that affect the outputs, in order, without assertions and reads of sizes."""
    # A size is printed as an expression of axes, which does not need the tensor that it was read from.
    live = ancestors(exported.outputs, lambda node: () if is_size(node) else node.all_input_nodes)
    return [
        node
        for node in exported.graph.nodes
        if node in live and node.op == "call_function" and not is_size(node) and not is_identity(node)
    ]


def ancestors(nodes: Iterable[fx.Node], inputs_of: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    """Return nodes and all nodes that they are computed from.

    Args:
        inputs_of: returns the nodes that a node is computed from.
    """
    visited: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in visited:
            visited.add(node)
            stack += inputs_of(node)
    return visited


def is_size(node: fx.Node) -> bool:
    """Return true if the value of a node is a size and not a tensor."""
    return isinstance(node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def used_inputs(exported: ExportedModule) -> list[fx.Node]:
    """Return the placeholders that affect the outputs, in the order of their first use."""
    used = [resolved(arg) for node in live_operations(exported) for arg in node.all_input_nodes]
    used += map(resolved, exported.outputs)
    return [node for node in dict.fromkeys(used) if node.op == "placeholder"]


def resolved(node: fx.Node) -> fx.Node:
    """Return the node that computes a value: operations that return their argument unchanged are skipped."""
    while node.op == "call_function" and is_identity(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


class FunctionPrinter:
    """Writes the statements of one graph.

    Args:
        input_names: placeholder -> name of the problem's input, in the order of the parameters.
        sizes: axis -> expression that reads its size, such as `hidden_states.shape[0]`.
    """

    def __init__(self, exported: ExportedModule, input_names: dict[fx.Node, str], sizes: dict[str, str]) -> None:
        self._exported = exported
        self._inputs = input_names
        self._sizes = sizes
        self._used_axes: dict[str, None] = {}
        self._unique = UniqueNames([*input_names.values(), *sizes])
        self._names: dict[fx.Node, str] = dict(input_names)
        self._lines: list[str] = []
        self._device = f"{next(iter(input_names.values()))}.device"

    def function(self) -> tuple[str, list[str]]:
        """Return the source of `run`, and the names of the variables that it returns, in order.

        Raises:
            SkippedError: an operator has no plain form.
        """
        nodes = live_operations(self._exported)
        wished = {**wished_names(nodes, self._inputs), **self._exported.names}
        for node in nodes:
            if node.target is operator.getitem:
                self._part(node, wished)
            elif isinstance(node.meta.get("val"), torch.Tensor):
                text = expression(node, self._text, self._device)
                self._assign(node, wished[node], text)
            else:
                self._parts(node, wished, nodes)
        outputs = [self._variable(resolved(node)) for node in self._exported.outputs]
        reads = [f"{axis} = {self._sizes[axis]}" for axis in self._sizes if axis in self._used_axes]
        body = "".join(f"    {line}\n" for line in (*reads, *self._lines, f"return {', '.join(outputs)}"))
        return _with_imports(_signature(list(self._inputs.values())) + body), outputs

    def _assign(self, node: fx.Node, wished: str, text: str) -> None:
        name = self._unique.take(wished)
        self._names[node] = name
        self._lines.append(f"{name} = {text}")

    def _parts(self, node: fx.Node, wished: dict[fx.Node, str], nodes: Sequence[fx.Node]) -> None:
        """Write an operator with several results, which are unpacked into variables if there are few."""
        text = expression(node, self._text, self._device)
        count = len(node.meta["val"])
        users = [user for user in node.users if user in nodes]
        parts = {user.args[1]: user for user in users if user.target is operator.getitem}
        if count > _MAX_PARTS or len(parts) < len(users):
            self._assign(node, wished[node], text)
            return
        targets = ["_"] * count
        for index in range(count):
            if index in parts:
                targets[index] = self._names[parts[index]] = self._unique.take(wished[parts[index]])
        if count > 1 and targets[1:] == ["_"] * (count - 1):
            self._lines.append(f"{targets[0]} = {text}[0]")
        else:
            self._lines.append(f"{', '.join(targets)}{',' if count == 1 else ''} = {text}")

    def _part(self, node: fx.Node, wished: dict[fx.Node, str]) -> None:
        if node not in self._names:
            self._assign(node, wished[node], f"{self._variable(node.args[0])}[{node.args[1]}]")

    def _variable(self, node: Any) -> str:  # noqa: ANN401 - a node
        name = self._names.get(node)
        if name is not None:
            return name
        constant = self._exported.constants.get(node.name)
        if constant is None:
            raise SkippedError(f"the value `{node.name}` has no source")
        return f"torch.tensor({constant.tolist()!r}, dtype={constant.dtype}, device={self._device})"

    def _text(self, value: Any) -> str:  # noqa: ANN401 - an argument of any kind
        if isinstance(value, fx.Node):
            value = resolved(value)
            return self._size(value.meta["val"]) if is_size(value) else self._variable(value)
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._text(item) for item in value)}]"
        if isinstance(value, float) and not -1e300 < value < 1e300:
            return f'float("{value}")'
        if isinstance(value, torch.dtype | bool | int | float | str) or value is None:
            return repr(value).replace("'", '"')
        raise SkippedError(f"the graph has an argument of type {type(value).__name__}")

    def _size(self, value: Any) -> str:  # noqa: ANN401 - a number or a symbolic one
        if isinstance(value, torch.SymFloat | torch.SymBool):
            raise SkippedError("the graph computes with a size that is not an integer")
        if not isinstance(value, torch.SymInt):
            return repr(value)
        size = value.node.expr
        for symbol in size.free_symbols:
            axis = self._exported.axes.get(symbol)
            if axis is None or axis not in self._sizes:
                raise SkippedError(f"the size `{symbol}` depends on values")
            self._used_axes[axis] = None
        return axis_expression(size, self._exported.axes)


def axis_expression(size: sympy.Expr, axes: dict[sympy.Symbol, str]) -> str:
    """Return a symbolic size as Python arithmetic over axes.

    Args:
        axes: symbol -> name of its axis.

    Raises:
        SkippedError: the expression is not plain arithmetic.
    """
    named = size.xreplace({symbol: sympy.Symbol(name, integer=True, positive=True) for symbol, name in axes.items()})
    text = str(PythonPrinter().doprint(named))
    if any(word in text for word in ("Max", "Min", "math", "Where", "Mod(", "if ")):
        raise SkippedError(f"a size is `{text}`, which is not plain arithmetic")
    # Without parentheses around names, which sympy's printer adds, and with spaces around `*`.
    text = re.sub(r"\(([A-Za-z_]\w*|\d+)\)", r"\1", text)
    return re.sub(r"(?<=\w)\*(?=\w)", " * ", text)


def _signature(names: Sequence[str]) -> str:
    line = f"def run({', '.join(names)}):\n"
    if len(line) <= _LINE:
        return line
    return "def run(\n" + "".join(f"    {name},\n" for name in names) + "):\n"


def _with_imports(function: str) -> str:
    imports = "import torch\n" if "torch." in function else ""
    imports += "import torch.nn.functional as F\n" if re.search(r"[ (-]F\.", function) else ""
    return f"{imports}\n\n{function}".lstrip("\n")
