"""solution.json of SOL-ExecBench and FlashInfer-Bench: import as a solution directory, and export of one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harness.errors import ConfigurationError, FormatError
from harness.formats.problem_exchange import move_into_place
from harness.formats.problems import read_text
from harness.formats.schema import FieldError, located, quoted, shown, validated
from harness.formats.solution_checks import path_errors
from harness.formats.solutions import SOLUTION_NAME, dump_solution, load_solution
from harness.formats.source_lines import json_lines, parse_json
from harness.model.axes import NonEmpty
from harness.model.base_models import LenientModel
from harness.model.languages import LANGUAGES, PYTHON_LANGUAGES, Language
from harness.model.solution import CompileOptions, ParamValue, Solution, SolutionSpec, macros

ExternalLanguage = Literal[
    "pytorch", "triton", "tlx", "cute_dsl", "cutile", "cudnn_frontend", "cutlass", "cudnn", "cublas", "cuda_cpp",
    "python", "cpp", "cuda", "tilelang",
]  # fmt: skip
"""Languages of SOL-ExecBench (its Python and C++ families), then names that only FlashInfer-Bench uses."""

_PYTHON_FAMILY = ("cute_dsl", "triton", "pytorch", "python")
_CPP_FAMILY = ("cuda_cpp", "cutlass", "cudnn", "cublas", "cuda", "cpp")
_UNSUPPORTED = ("cutile", "cudnn_frontend", "tlx", "tilelang")


class ExternalCompileOptions(LenientModel):
    """Flags of the compilers and the linker; the defaults are those of SOL-ExecBench."""

    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ("-O3", "--use_fast_math")
    ld_flags: tuple[str, ...] = ("-lcuda",)


class ExternalSpec(LenientModel):
    """Build options and entry point. `language` is a key of FlashInfer-Bench, `languages` one of SOL-ExecBench."""

    languages: tuple[ExternalLanguage, ...] = ()
    language: ExternalLanguage | None = None
    target_hardware: tuple[NonEmpty, ...]
    entry_point: NonEmpty
    dependencies: tuple[str, ...] | None = None
    destination_passing_style: bool = True
    binding: Literal["tvm_ffi", "tvm-ffi", "torch"] | None = None
    compile_options: ExternalCompileOptions | None = None


class ExternalSource(LenientModel):
    """One source file."""

    path: NonEmpty
    content: NonEmpty


class ExternalSolution(LenientModel):
    """solution.json."""

    name: NonEmpty
    definition: NonEmpty
    author: NonEmpty
    description: str | None = None
    spec: ExternalSpec
    sources: tuple[ExternalSource, ...] = Field(min_length=1)


def read_solution_json(path: Path) -> ExternalSolution:
    """Return the checked content of a solution.json.

    Raises:
        FormatError: the first error, with file, line, field and the expected value.
    """
    where = shown(path)
    text = read_text(path)
    value, lines = parse_json(text, where=where), json_lines(text)
    solution, errors = validated(ExternalSolution, value, where=where, lines=lines)
    if solution is None:
        raise errors[0]
    for field, message in _field_errors(solution):
        raise located(message, field, where=where, lines=lines)
    return solution


def _field_errors(solution: ExternalSolution) -> Iterator[FieldError]:
    spec = solution.spec
    languages = spec.languages or tuple(filter(None, [spec.language]))
    if not languages:
        yield ("spec",), "`spec.languages` is missing; expected a list of languages"
    field = "languages" if spec.languages else "language"
    compiled = [name for name in languages if name in _CPP_FAMILY]
    if compiled and len(compiled) < len(languages):
        mixed = quoted(list(languages))
        message = f"`spec.{field}` mixes {mixed}; expected Python languages or C++ languages, not both"
        yield ("spec", field), message
    paths: set[str] = set()
    for index, source in enumerate(solution.sources):
        for message in path_errors(source.path):
            yield ("sources", index, "path"), f"`sources[{index}].path`: {message}"
        if source.path in paths:
            yield ("sources", index), f"`sources[{index}].path` `{source.path}` comes twice; expected each once"
        paths.add(source.path)
    if spec.entry_point.count("::") != 1 or spec.entry_point.partition("::")[0] not in paths:
        entry = quoted(spec.entry_point)
        message = f"`spec.entry_point` is {entry}; expected `file::function` with one of the sources as its file"
        yield ("spec", "entry_point"), message


def spec_from(solution: ExternalSolution) -> SolutionSpec:
    """Return the solution.yaml of a solution.json.

    Raises:
        FormatError: the harness does not run the solution's language.
    """
    spec = solution.spec
    languages = spec.languages or tuple(filter(None, [spec.language]))
    unsupported = [name for name in languages if name in _UNSUPPORTED]
    if unsupported:
        supported = ", ".join((*_PYTHON_FAMILY, *_CPP_FAMILY))
        raise FormatError(f"language `{unsupported[0]}` is not run here; expected one of {supported}")
    language, binding, options = _language(languages), None, spec.compile_options
    if language == "cuda_cpp":  # without a binding, the default of the solution's benchmark
        binding = spec.binding or ("torch" if spec.languages else "tvm_ffi")
    flags = CompileOptions()
    if language == "cuda_cpp" and options is not None:
        flags = CompileOptions(flags=options.cflags, cuda_flags=options.cuda_cflags, link_flags=options.ld_flags)
    return SolutionSpec(
        language=language,
        entry=spec.entry_point,
        binding="tvm_ffi" if binding == "tvm-ffi" else binding,
        destination_passing=spec.destination_passing_style,
        compile=flags,
        notes=" ".join(f"{solution.name} by {solution.author}".split())[:200],
    )


def _language(languages: tuple[ExternalLanguage, ...]) -> Language:
    for language in _PYTHON_FAMILY:
        if language in languages:
            return "pytorch" if language == "python" else language  # type: ignore[return-value] # all but `python` are
    return "cuda_cpp"


def solution_from_json(path: Path, destination: Path, *, replace: bool = False) -> Path:
    """Convert a solution.json to a solution directory, check it and return its path.

    Raises:
        FormatError: the file is malformed, or the harness does not run its language.
        ConfigurationError: the directory exists and `replace` is false.
    """
    external = read_solution_json(path)
    try:
        spec = spec_from(external)
    except FormatError as error:
        raise FormatError(error.message, where=shown(path)) from error
    if destination.exists() and not replace:
        raise ConfigurationError(
            "a solution is there already", where=shown(destination), remedy="overwrite it with --replace"
        )
    destination.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".import-", dir=destination.parent))
    try:
        for source in external.sources:
            file = staging / source.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source.content)
        (staging / SOLUTION_NAME).write_text(dump_solution(spec))
        load_solution(staging)
        move_into_place(staging, destination)
    except OSError as error:  # such as a source with the name of another source's directory
        raise FormatError(f"its sources cannot be written: {error.strerror}", where=shown(path)) from error
    except FormatError as error:
        raise FormatError(error.message, where=shown(path)) from error  # the temporary file no longer exists
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return destination


def solution_document(
    solution: Solution,
    *,
    name: str,
    definition: str,
    author: str,
    description: str,
    target: str,
    constants: Mapping[str, int],
) -> dict[str, Any]:
    """Return the document of solution.json.

    The format has no params and no macros of axes. So the values of `params` become a part of the sources or of the
    compiler's flags, and the constant axes become macros in the flags of compiled code.

    Args:
        name: the solution's name in the document.
        target: device class, such as `h200`; written in upper case, except `cpu`.

    Raises:
        FormatError: the format does not support the solution's language.
    """
    spec = solution.spec
    language = LANGUAGES[spec.language].exported_as
    if language is None:
        raise FormatError(f"language {spec.language} cannot be exported: {LANGUAGES[spec.language].no_export}")
    sources = {name: (solution.directory / name).read_text() for name in solution.sources}
    options: dict[str, Any] = {}
    if spec.language in PYTHON_LANGUAGES:
        sources[spec.file] += _wrapper_with_params(spec.function, spec.params)
    else:
        macro_flags = macros(constants, spec.params)
        options["compile_options"] = {
            "cflags": [*spec.compile.flags, *macro_flags],
            "cuda_cflags": [*spec.compile.cuda_flags, *macro_flags],
            "ld_flags": list(spec.compile.link_flags),
        }
        options["binding"] = spec.binding or "tvm_ffi"
    return {
        "name": name,
        "definition": definition,
        "author": author,
        "description": description,
        "spec": {
            "languages": [language],
            "target_hardware": [target if target == "cpu" else target.upper()],
            "entry_point": spec.entry,
            "dependencies": [],
            "destination_passing_style": spec.destination_passing,
            **options,
        },
        "sources": [{"path": path, "content": text} for path, text in sorted(sources.items())],
    }


def _wrapper_with_params(function: str, params: Mapping[str, ParamValue]) -> str:
    """Return Python source that replaces the entry point by one with the values of the params."""
    if not params:
        return ""
    keywords = ", ".join(f"{name}={value!r}" for name, value in params.items())
    return (
        "\n\n# The values of the solution's params, which are keyword arguments of the original entry point.\n"
        f"_searched_{function} = {function}\n\n\n"
        f"def {function}(*arguments):\n"
        f"    return _searched_{function}(*arguments, {keywords})\n"
    )
