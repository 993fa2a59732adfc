"""Problems that compute the same graph."""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterable

from harness.formats.problem_tags import provenance_in
from harness.model.problem import Problem


def graph_of(problem: Problem) -> str:
    """Hash of what a problem computes, without names, constants and sizes.

    Of an extracted problem that of its exported graph; of one written by hand that of the syntax of its reference.
    """
    provenance = provenance_in(problem.definition)
    if provenance is not None and provenance.get("graph"):
        return f"graph {provenance['graph']}"
    tree = _Nameless().visit(ast.parse(problem.definition.reference))
    return f"syntax {hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]}"


class _Nameless(ast.NodeTransformer):
    """Numbers the names of variables and functions, and removes numbers and texts. Names of attributes stay."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def _name(self, name: str) -> str:
        return f"n{self._numbers.setdefault(name, len(self._numbers))}"

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._name(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._name(node.name)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        keeps = isinstance(node.value, bool) or node.value is None
        return ast.Constant(node.value if keeps else 0)


def duplicates(problems: Iterable[Problem]) -> dict[str, tuple[str, ...]]:
    """Key of a problem -> keys of the others that compute the same."""
    by_graph: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        by_graph[graph_of(problem)].append(problem.key)
    return {
        key: tuple(other for other in keys if other != key)
        for keys in by_graph.values()
        if len(keys) > 1
        for key in keys
    }
