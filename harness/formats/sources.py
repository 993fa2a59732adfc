"""What a solution's sources may be called, and whether the entry point is among them."""

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
from harness.model.solution import PYTHON_LANGUAGES, SolutionSpec

MAX_SOURCE_BYTES = 2**20
MAX_TOTAL_BYTES = 4 * 2**20

_PROBLEM_FILES = frozenset({"definition.json", "workload.jsonl", "reference.py", "solution.json"})
_RUNNER_MODULES = frozenset({
    "harness", "torch", "torchgen", "functorch", "numpy", "triton", "cupy", "cupyx", "cuda", "cutlass", "tvm_ffi",
    "jinja2", "sympy", "mpmath", "networkx", "filelock", "fsspec", "markupsafe", "safetensors", "setuptools", "yaml",
    "pkg_resources", "nvidia", "typing_extensions", "sitecustomize", "usercustomize", "pydantic", "scipy",
})  # fmt: skip
"""What a runner imports besides the standard library: torch, what torch imports, and the start-up hooks of Python."""
_IMPORTABLE = (".py", ".pyc", ".pyi", ".so", ".pth")


def check_names(names: Iterable[str], *, where: Path) -> list[FormatError]:
    """Complaints about the relative paths of sources."""
    return [FormatError(what, where=shown(where / name)) for name in names for what in complaints_about(name)]


def complaints_about(name: str) -> Iterator[str]:
    """What is wrong with one source's relative path."""
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
    """Complaints about an entry point that the sources do not have."""
    if spec.file not in texts:
        held = ", ".join(f"`{name}`" for name in sorted(texts)) or "none"
        what = f"`entry` names the file `{spec.file}`, which is not there; the sources are {held}"
        return [located(what, ("entry",), where=where, lines=lines())]
    text = texts[spec.file]
    if spec.language in PYTHON_LANGUAGES:
        try:
            found = spec.function in _defined(text)
        except SyntaxError as error:
            place = shown(directory / spec.file) + (f":{error.lineno}" if error.lineno else "")
            return [FormatError(f"not Python: {error.msg}", where=place)]
    else:
        found = re.search(rf"\b{re.escape(spec.function)}\b", text) is not None
    if found:
        return []
    kind = "top-level function" if spec.language in PYTHON_LANGUAGES else "function"
    what = f"`entry` names `{spec.function}`; expected a {kind} of `{spec.file}`"
    return [located(what, ("entry",), where=where, lines=lines())]


def _defined(source: str) -> set[str]:
    """Names that a module binds at its top level: functions, and what decorators or imports leave under a name."""
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
