"""Detection of problems with the same graph."""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterable

from harness.formats.problem_tags import provenance_in
from harness.model.problem import Problem


def graph_of(problem: Problem) -> str:
    """Return a hash of a problem's computation without names, constants and sizes.

    It is the hash of an extracted problem's exported graph, or of the reference's syntax of a problem written by hand.
    """
    provenance = provenance_in(problem.definition)
    if provenance is not None and provenance.get("graph"):
        return f"graph {provenance['graph']}"
    tree = _Nameless().visit(ast.parse(problem.definition.reference))
    return f"syntax {hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]}"


class _Nameless(ast.NodeTransformer):
    """Replaces the names of variables and functions by numbers, and removes constants. Attributes keep their names."""

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
    """Return the key of each problem with duplicates -> keys of its duplicates."""
    by_graph: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        by_graph[graph_of(problem)].append(problem.key)
    return {
        key: tuple(duplicate for duplicate in keys if duplicate != key)
        for keys in by_graph.values()
        if len(keys) > 1
        for key in keys
    }
