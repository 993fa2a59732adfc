"""Checks of a solution beyond its structure: the relations of its keys, its sources, its entry point, its problem."""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from harness.errors import FormatError
from harness.formats.schema import FieldError, did_you_mean, located, quoted, shown
from harness.formats.source_lines import FieldPath, field_name
from harness.model.axes import parse_python
from harness.model.languages import LANGUAGES, PYTHON_LANGUAGES
from harness.model.problem import Definition
from harness.model.solution import ParamValue, SolutionSpec

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
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CPP_WORDS = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
    "char", "char16_t", "char32_t", "class", "compl", "const", "constexpr", "const_cast", "continue",
    "decltype", "default", "defined", "delete", "do", "double", "dynamic_cast", "else", "enum", "explicit",
    "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long", "main",
    "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private",
    "protected", "public", "register", "reinterpret_cast", "restrict", "return", "short", "signed", "sizeof",
    "static", "static_assert", "static_cast", "struct", "switch", "template", "this", "thread_local", "throw",
    "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual", "void", "volatile",
    "wchar_t", "while", "xor", "xor_eq",
})  # fmt: skip
"""Names that a param may not have: a macro with the name of a keyword changes the meaning of the code."""
_MAX_FLAGS = 64
_MAX_TUNE_VALUES = 256
_LONGEST_TEXT = 200


def check_spec(spec: SolutionSpec) -> list[FieldError]:
    """Return the errors in a solution.yaml whose structure is valid, each with the path of its field."""
    return [*_entry(spec), *_binding(spec), *_params(spec), *_tune(spec), *_compile(spec), *_plan(spec)]


def check_fit(spec: SolutionSpec, definition: Definition) -> Iterator[FieldError]:
    """Yield the errors of a solution with respect to one problem, each with the path of its field."""
    if spec.language in PYTHON_LANGUAGES:
        for name in spec.params:
            if name in definition.inputs or name in definition.outputs:
                message = f"`params.{name}` is also an input or output of the problem; expected a keyword of its own"
                yield ("params", name), message


def _entry(spec: SolutionSpec) -> Iterator[FieldError]:
    file, function, suffixes = spec.file, spec.function, LANGUAGES[spec.language].suffixes
    pure = PurePosixPath(file)
    if spec.entry.count("::") != 1 or not file or not _IDENTIFIER.fullmatch(function):
        example = f"kernel{suffixes[0]}::run"
        yield ("entry",), f"`entry` is {quoted(spec.entry)}; expected `file::function`, such as `{example}`"
    elif pure.is_absolute() or ".." in pure.parts or str(pure) != file:
        yield ("entry",), f"`entry` names the file `{file}`; expected a relative path inside the solution"
    elif not file.endswith(suffixes):
        expected = " or ".join(suffixes)
        yield ("entry",), f"`entry` names the file `{file}`; expected a {expected} file for language {spec.language}"


def _binding(spec: SolutionSpec) -> Iterator[FieldError]:
    if spec.binding is not None and spec.language != "cuda_cpp":
        yield ("binding",), f"`binding` is for language cuda_cpp only; found language {spec.language}"


def _params(spec: SolutionSpec) -> Iterator[FieldError]:
    for name, value in spec.params.items():
        path = ("params", name)
        if not _IDENTIFIER.fullmatch(name) or name.startswith("__"):
            yield path, f"`params.{name}` is no usable name; expected a C identifier that does not begin with `__`"
        elif name.startswith("AXIS_"):
            yield (
                path,
                f"`params.{name}` clashes with the macros of axes; expected a name that does not begin with `AXIS_`",
            )
        elif name in _CPP_WORDS or keyword.iskeyword(name):
            yield path, f"`params.{name}` is a word of the language; expected a name of its own"
        yield from _text_value(path, value)


def _text_value(path: FieldPath, value: ParamValue) -> Iterator[FieldError]:
    if isinstance(value, str) and (len(value) > _LONGEST_TEXT or not value.isprintable()):
        yield path, f"`{field_name(path)}` is {quoted(value)}; expected one line of at most {_LONGEST_TEXT} characters"


def _tune(spec: SolutionSpec) -> Iterator[FieldError]:
    for name, values in spec.tune.items():
        path = ("tune", name)
        if name not in spec.params:
            hint = did_you_mean(name, spec.params) if spec.params else "expected it there with a value"
            yield path, f"`tune.{name}` is not among `params`; {hint}"
        elif not values or len(values) > _MAX_TUNE_VALUES:
            yield path, f"`tune.{name}` has {len(values)} values; expected 1 to {_MAX_TUNE_VALUES}"
        elif len({(type(value), value) for value in values}) < len(values):
            yield path, f"`tune.{name}` lists a value twice; expected different values"
        elif not _contains(values, spec.params[name]):
            value_text = quoted(spec.params[name])
            yield ("params", name), f"`params.{name}` is {value_text}; expected one of the values of `tune.{name}`"
        for index, value in enumerate(values):
            yield from _text_value((*path, index), value)


def _contains(values: tuple[ParamValue, ...], value: ParamValue) -> bool:
    """Return whether a value with the same type is among the values, because True and 1 are different params."""
    return any(type(value) is type(candidate) and value == candidate for candidate in values)


def _compile(spec: SolutionSpec) -> Iterator[FieldError]:
    for name in ("flags", "cuda_flags", "link_flags"):
        flags: tuple[str, ...] = getattr(spec.compile, name)
        path = ("compile", name)
        if flags and spec.language in PYTHON_LANGUAGES:
            yield path, f"`compile.{name}` has flags; expected none for language {spec.language}"
        elif flags and name != "flags" and spec.language != "cuda_cpp":
            yield path, f"`compile.{name}` has flags; expected them in `compile.flags` for language {spec.language}"
        if len(flags) > _MAX_FLAGS:
            yield path, f"`compile.{name}` has {len(flags)} flags; expected at most {_MAX_FLAGS}"
        for index, flag in enumerate(flags):
            if not flag or not flag.isprintable():
                yield (*path, index), f"`compile.{name}[{index}]` is {quoted(flag)}; expected one flag in one line"


def _plan(spec: SolutionSpec) -> Iterator[FieldError]:
    if spec.language != "cuda":
        for name in ("launch", "workspaces"):
            if getattr(spec, name):
                yield (name,), f"`{name}` is for language cuda only; found language {spec.language}"
        return
    if not spec.launch:
        yield ("launch",), "`launch` is missing; expected the launches of language cuda, in order"


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
    lines: Mapping[FieldPath, int],
    directory: Path,
) -> list[FormatError]:
    """Return the errors of the entry point: its file or function is missing, or the file is not Python.

    Args:
        texts: relative path -> text of each source.
        where: solution.yaml, for messages.
        lines: line of each field of solution.yaml.
        directory: the solution directory, for messages.
    """
    if spec.file not in texts:
        names = ", ".join(f"`{name}`" for name in sorted(texts)) or "none"
        message = f"`entry` names the file `{spec.file}`, which is not there; the sources are {names}"
        return [located(message, ("entry",), where=where, lines=lines)]
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
    return [located(message, ("entry",), where=where, lines=lines)]


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
