"""Baselines of a problem that call a library: `baselines/NAME.py` (docs/formats.md).

Like the reference, a file is read with `ast` here, and only the judge's runner imports it.
"""

from __future__ import annotations

import ast
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from harness.errors import FormatError
from harness.formats.bounded import DOCUMENT_BYTES
from harness.formats.schema import shown
from harness.model.axes import parse_python
from harness.model.judging import LIBRARY_PREFIX
from harness.model.problem import Definition

DIRECTORY = "baselines"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class LibraryBaseline:
    """One file that computes a problem with a library."""

    name: str
    file: Path
    source: str
    modules: tuple[str, ...]
    """Top-level modules that the source imports."""

    @property
    def variant(self) -> str:
        """The name of its times in entries."""
        return f"{LIBRARY_PREFIX}{self.name}"


def library_baselines(directory: Path, definition: Definition) -> tuple[list[LibraryBaseline], list[FormatError]]:
    """Read the library baselines of a problem, in the order of their names.

    Returns:
        Those that are right, and what is wrong with the others.
    """
    baselines: list[LibraryBaseline] = []
    errors: list[FormatError] = []
    for file in sorted(directory.joinpath(DIRECTORY).glob("*.py")):
        try:
            baselines.append(_read(file, definition))
        except FormatError as error:
            errors.append(error)
    return baselines, errors


def _read(file: Path, definition: Definition) -> LibraryBaseline:
    where = shown(file)
    if _NAME.fullmatch(file.stem) is None:
        raise FormatError(f"`{file.stem}` is no name of a baseline; expected {_NAME.pattern}", where=where)
    source = _text(file)
    try:
        tree = parse_python(source)
    except SyntaxError as error:
        raise FormatError(f"not Python: {error.msg}", where=f"{where}:{error.lineno or 1}") from error
    run = top_level_functions(tree).get("run")
    if run is None:
        raise FormatError("no top-level function `run`", where=where)
    signature_error = run_signature_error(run, definition)
    if signature_error is not None:
        raise FormatError(signature_error, where=f"{where}:{run.lineno}")
    return LibraryBaseline(file.stem, file, source, imported_modules(tree))


def _text(file: Path) -> str:
    """Return the text of a plain file. A link could lead outside the problem, and a pipe could block."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > DOCUMENT_BYTES:
        raise FormatError(f"expected a plain file of at most {DOCUMENT_BYTES} bytes", where=shown(file))
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text at byte {error.start}", where=shown(file)) from error


def top_level_functions(tree: ast.AST) -> dict[str, ast.FunctionDef]:
    """Return the functions that a module defines at its top level, by name."""
    return {node.name: node for node in getattr(tree, "body", ()) if isinstance(node, ast.FunctionDef)}


def run_signature_error(run: ast.FunctionDef, definition: Definition) -> str | None:
    """Return a predicate about a function whose parameters are not the problem's inputs in order; else None.

    Args:
        run: the function `run` of a reference or baseline.
    """
    takes = [argument.arg for argument in (*run.args.posonlyargs, *run.args.args)]
    if takes == list(definition.inputs):
        return None
    return f"defines `run({', '.join(takes)})`; expected the inputs in order: `run({', '.join(definition.inputs)})`"


def imported_modules(tree: ast.AST) -> tuple[str, ...]:
    """Return the top-level modules that a syntax tree imports."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return tuple(dict.fromkeys(name.partition(".")[0] for name in names))
