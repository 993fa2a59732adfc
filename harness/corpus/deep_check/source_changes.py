"""Changes of the epsilons in the source of a reference: constants that prevent a division by zero."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_LARGEST_EPSILON = 1e-3
_NORMS = {"layer_norm": 4, "group_norm": 4, "batch_norm": 7, "instance_norm": 7}
"""Functions of torch with an epsilon, and its index among the positional arguments."""
_DEFAULT_EPSILON = 1e-5
"""Default epsilon of each function in `_NORMS`. Source: documentation of torch.nn.functional."""


@dataclass(frozen=True)
class Epsilon:
    """A small positive constant of a reference, explicit or the default of a function."""

    number: int
    """Index in the list that `epsilons` returns."""
    value: float
    line: int


def epsilons(source: str, *, without: str | None = None) -> list[Epsilon]:
    """Return the epsilons of a source, in the order of the source.

    Args:
        without: name of the function that makes the inputs, whose constants are omitted.
    """
    nodes = _constants(ast.parse(source), without)
    return [Epsilon(number, _value_of(node), node.lineno) for number, node in enumerate(nodes)]


def with_epsilon(source: str, epsilon: Epsilon, value: float, *, without: str | None = None) -> str:
    """Return the source with another value of one epsilon.

    Args:
        epsilon: one of the source's `epsilons`.
        without: as of `epsilons`.
    """
    tree = ast.parse(source)
    node = next(node for number, node in enumerate(_constants(tree, without)) if number == epsilon.number)
    if isinstance(node, ast.Constant):
        node.value = value
    else:
        node.keywords.append(ast.keyword("eps", ast.Constant(value)))
    return ast.unparse(ast.fix_missing_locations(tree))


def _value_of(node: ast.Constant | ast.Call) -> float:
    return float(str(node.value)) if isinstance(node, ast.Constant) else _DEFAULT_EPSILON


def _constants(tree: ast.Module, without: str | None) -> Iterator[ast.Constant | ast.Call]:
    """Yield explicit epsilons, and calls that use the default one, in the order of the source."""
    statements = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == without)]
    nodes = [node for statement in statements for node in ast.walk(statement)]
    factors = {
        id(operand)
        for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.Pow)
        for operand in (node.left, node.right)
    }
    sites: list[ast.Constant | ast.Call] = [
        node for node in nodes if isinstance(node, ast.Constant) and _is_epsilon(node) and id(node) not in factors
    ]
    sites += [node for node in nodes if isinstance(node, ast.Call) and _lacks_epsilon(node)]
    return iter(sorted(sites, key=lambda node: (node.lineno, node.col_offset)))


def _is_epsilon(node: ast.Constant) -> bool:
    return isinstance(node.value, float) and 0.0 < node.value <= _LARGEST_EPSILON


def _lacks_epsilon(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    place = _NORMS.get(name)
    return place is not None and len(node.args) <= place and all(word.arg != "eps" for word in node.keywords)
