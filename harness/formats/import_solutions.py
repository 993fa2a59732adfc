"""Import of solution.json of SOL-ExecBench and FlashInfer-Bench as a solution directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import ConfigurationError, FormatError
from harness.formats.problems import read_text
from harness.formats.schema import located, quoted, shown, validated
from harness.formats.solutions import SOLUTION_NAME, dump_solution, load_solution
from harness.formats.source_lines import json_lines, parse_json
from harness.formats.sources import path_errors
from harness.model.axis_types import NonEmpty
from harness.model.languages import Language
from harness.model.solution import Binding, CompileOptions, SolutionSpec

ExternalLanguage = Literal[
    "pytorch", "triton", "tlx", "cute_dsl", "cutile", "cudnn_frontend", "cutlass", "cudnn", "cublas", "cuda_cpp",
    "python", "cpp", "cuda", "tilelang",
]  # fmt: skip
"""Languages of SOL-ExecBench (its Python and C++ families), then names that only FlashInfer-Bench uses."""

_PYTHON_FAMILY = ("cute_dsl", "triton", "pytorch", "python")
_CPP_FAMILY = ("cuda_cpp", "cutlass", "cudnn", "cublas", "cuda", "cpp")
_UNSUPPORTED = ("cutile", "cudnn_frontend", "tlx", "tilelang")


class _ExternalModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class ExternalCompileOptions(_ExternalModel):
    """Flags of the compilers and the linker; the defaults are those of SOL-ExecBench."""

    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ("-O3", "--use_fast_math")
    ld_flags: tuple[str, ...] = ("-lcuda",)


class ExternalSpec(_ExternalModel):
    """Build options and entry point. `language` is a key of FlashInfer-Bench, `languages` one of SOL-ExecBench."""

    languages: tuple[ExternalLanguage, ...] = ()
    language: ExternalLanguage | None = None
    target_hardware: tuple[NonEmpty, ...]
    entry_point: NonEmpty
    dependencies: tuple[str, ...] | None = None
    destination_passing_style: bool = True
    binding: Literal["tvm_ffi", "tvm-ffi", "torch"] | None = None
    compile_options: ExternalCompileOptions | None = None


class ExternalSource(_ExternalModel):
    """One source file."""

    path: NonEmpty
    content: NonEmpty


class ExternalSolution(_ExternalModel):
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
    value = parse_json(text, where=where)
    solution, errors = validated(ExternalSolution, value, where=where, lines=lambda: json_lines(text))
    if solution is None:
        raise errors[0]

    def field_error(message: str, *field: str | int) -> FormatError:
        return located(message, field, where=where, lines=json_lines(text))

    _check_languages(solution, field_error=field_error)
    paths: set[str] = set()
    for index, source in enumerate(solution.sources):
        for message in path_errors(source.path):
            raise field_error(f"`sources[{index}].path`: {message}", "sources", index, "path")
        if source.path in paths:
            message = f"`sources[{index}].path` `{source.path}` comes twice; expected each once"
            raise field_error(message, "sources", index)
        paths.add(source.path)
    file = solution.spec.entry_point.partition("::")[0]
    if solution.spec.entry_point.count("::") != 1 or file not in paths:
        entry = quoted(solution.spec.entry_point)
        message = f"`spec.entry_point` is {entry}; expected `file::function` with one of the sources as its file"
        raise field_error(message, "spec", "entry_point")
    return solution


def _check_languages(solution: ExternalSolution, *, field_error: Callable[..., FormatError]) -> None:
    languages = solution.spec.languages or tuple(filter(None, [solution.spec.language]))
    if not languages:
        raise field_error("`spec.languages` is missing; expected a list of languages", "spec")
    field = "languages" if solution.spec.languages else "language"
    compiled = [name for name in languages if name in _CPP_FAMILY]
    if compiled and len(compiled) < len(languages):
        mixed = quoted(list(languages))
        message = f"`spec.{field}` mixes {mixed}; expected Python languages or C++ languages, not both"
        raise field_error(message, "spec", field)


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
    language = _language(languages)
    notes = " ".join(f"{solution.name} by {solution.author}".split())
    return SolutionSpec(
        language=language,
        entry=spec.entry_point,
        binding=_binding(spec) if language == "cuda_cpp" else None,
        destination_passing=spec.destination_passing_style,
        compile=_options(spec.compile_options) if language == "cuda_cpp" else CompileOptions(),
        notes=notes[:200],
    )


def _binding(spec: ExternalSpec) -> Binding:
    """Return the binding of a compiled solution; its benchmark's default if the solution names none."""
    if spec.binding is None:
        return "torch" if spec.languages else "tvm_ffi"
    return "torch" if spec.binding == "torch" else "tvm_ffi"


def _options(options: ExternalCompileOptions | None) -> CompileOptions:
    if options is None:
        return CompileOptions()
    return CompileOptions(flags=options.cflags, cuda_flags=options.cuda_cflags, link_flags=options.ld_flags)


def _language(languages: tuple[ExternalLanguage, ...]) -> Language:
    for language in _PYTHON_FAMILY:
        if language in languages:
            return "pytorch" if language == "python" else language  # type: ignore[return-value] # all but `python` are
    return "cuda_cpp"


def solution_from_json(path: Path, destination: Path, *, replace: bool = False) -> Path:
    """Convert a solution.json to a solution directory, check it and return its path.

    Args:
        path: the solution.json.
        destination: the solution directory to write.
        replace: overwrite an existing directory.

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
        staging.chmod(0o755)  # mkdtemp creates a private directory
        if destination.exists():
            shutil.rmtree(destination)
        staging.rename(destination)
    except OSError as error:  # such as a source with the name of another source's directory
        raise FormatError(f"its sources cannot be written: {error.strerror}", where=shown(path)) from error
    except FormatError as error:
        raise FormatError(error.message, where=shown(path)) from error  # the temporary file no longer exists
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return destination
