"""Print the figures of the code base that docs/performance.md keeps: `python -m tests.language.figures [DIRECTORY]`."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from tabulate import tabulate

from tests.language.check import EXCLUDED

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources(root: Path) -> Iterator[Path]:
    """Yield the Python files of the package below the root of a checkout, without examples and data."""
    for path in sorted((root / "harness").rglob("*.py")):
        if not any(path.is_relative_to(root / directory) for directory in EXCLUDED):
            yield path


def code_lines(tree: ast.Module) -> int:
    """Return the number of lines that hold code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    docstrings = {id(node.value) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.alias)) and id(node) not in docstrings:
            if isinstance(node, ast.Expr) and id(node.value) in docstrings:
                continue
            # A compound statement covers its body: its parts and their lines are counted by themselves.
            simple = not hasattr(node, "body") or isinstance(node, (ast.Lambda, ast.IfExp))
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1)) if simple else {node.lineno}
    return len(lines)


def _docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                yield child


def figures(root: Path) -> list[tuple[str, str]]:
    """Return the figures of a checkout as rows of a name and a value."""
    paths = list(sources(root))
    trees = {path: ast.parse(path.read_text()) for path in paths}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for node in nodes if isinstance(node, _FUNCTIONS)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    packages = Counter(path.parent.relative_to(root).as_posix() for path in paths)
    largest = packages.most_common(1)[0]
    by_package = Counter[str]()
    for path, tree in trees.items():
        by_package[path.relative_to(root).parts[1]] += code_lines(tree)
    return [
        ("code lines without docstrings and comments", f"{sum(by_package.values()):,}"),
        *((f"  of {package}", f"{count:,}") for package, count in sorted(by_package.items())),
        ("files", str(len(paths))),
        ("most files in one package", f"{largest[1]} ({largest[0]})"),
        ("lines of a function: median, 90th percentile, most",
         f"{median(lengths):g}, {quantiles(lengths, n=10)[-1]:g}, {max(lengths)}"),
        ("class names used twice", str(len([name for name, count in classes.items() if count > 1]))),
    ]  # fmt: skip


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2]
    sys.stdout.write(tabulate(figures(directory), headers=["figure", "value"], disable_numparse=True) + "\n")
