"""Checks of the names of a solution's sources, and of its entry point."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from harness.errors import FormatError
from harness.formats.schema import located, shown
from harness.formats.source_lines import Path as FieldPath
from harness.model.axes import parse_python
from harness.model.languages import PYTHON_LANGUAGES
from harness.model.solution import SolutionSpec

MAX_SOURCE_BYTES = 2**20
MAX_TOTAL_BYTES = 4 * 2**20

_PROBLEM_FILES = frozenset({"definition.json", "workload.jsonl", "reference.py", "solution.json"})
_RUNNER_MODULES = frozenset({
    "harness", "torch", "torchgen", "functorch", "numpy", "triton", "cupy", "cupyx", "cuda", "cutlass", "tvm_ffi",
    "jinja2", "sympy", "mpmath", "networkx", "filelock", "fsspec", "markupsafe", "safetensors", "setuptools", "yaml",
    "pkg_resources", "nvidia", "typing_extensions", "sitecustomize", "usercustomize", "pydantic", "scipy",
})  # fmt: skip
"""Modules that a runner imports besides the standard library: torch, torch's imports and Python's start-up hooks."""
_IMPORTABLE = (".py", ".pyc", ".pyi", ".so", ".pth")


def check_names(names: Iterable[str], *, where: Path) -> list[FormatError]:
    """Return the errors in the relative paths of sources.

    Args:
        names: paths relative to the solution directory.
        where: the solution directory, for messages.
    """
    return [FormatError(message, where=shown(where / name)) for name in names for message in path_errors(name)]


def path_errors(name: str) -> Iterator[str]:
    """Yield the errors in one source's path, which is relative to the solution directory."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or not name or "\\" in name or "\0" in name or str(pure) != name:
        yield f"the source path `{name}` is not plain; expected one relative to the solution, without `..`"
        return
    if not name.isprintable():
        yield "the source path holds unprintable characters; expected a plain name"
    if ".git" in pure.parts:
        yield "part of a git directory; expected sources only"
    if pure.name in _PROBLEM_FILES or name == "solution.yaml":
        yield f"`{pure.name}` is the name of a problem's file; expected a name of its own"
    module = pure.parts[0].partition(".")[0]
    is_package = len(pure.parts) > 1
    if (is_package or pure.suffix in _IMPORTABLE) and (module in sys.stdlib_module_names or module in _RUNNER_MODULES):
        yield f"`{pure.parts[0]}` would shadow the module `{module}`, which the runner needs; expected another name"


def check_entry(
    spec: SolutionSpec,
    texts: Mapping[str, str],
    *,
    where: str,
    lines: Callable[[], Mapping[FieldPath, int]],
    directory: Path,
) -> list[FormatError]:
    """Return the errors of the entry point: its file or function is missing, or the file is not Python.

    Args:
        spec: the solution's spec.
        texts: relative path -> text of each source.
        where: solution.yaml, for messages.
        lines: returns the line of each field of solution.yaml; called only for an error.
        directory: the solution directory, for messages.
    """
    if spec.file not in texts:
        names = ", ".join(f"`{name}`" for name in sorted(texts)) or "none"
        message = f"`entry` names the file `{spec.file}`, which is not there; the sources are {names}"
        return [located(message, ("entry",), where=where, lines=lines())]
    text = texts[spec.file]
    if spec.language in PYTHON_LANGUAGES:
        try:
            is_defined = spec.function in _top_level_names(text)
        except SyntaxError as error:
            place = shown(directory / spec.file) + (f":{error.lineno}" if error.lineno else "")
            return [FormatError(f"not Python: {error.msg}", where=place)]
    else:
        is_defined = re.search(rf"\b{re.escape(spec.function)}\b", text) is not None
    if is_defined:
        return []
    kind = "top-level function" if spec.language in PYTHON_LANGUAGES else "function"
    message = f"`entry` names `{spec.function}`; expected a {kind} of `{spec.file}`"
    return [located(message, ("entry",), where=where, lines=lines())]


def _top_level_names(source: str) -> set[str]:
    """Return the names that a module binds at its top level by functions, classes, assignments and `from` imports."""
    names: set[str] = set()
    for node in getattr(parse_python(source), "body", ()):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
    return names
