"""solution.json of SOL-ExecBench and FlashInfer-Bench, written out as a solution directory of ours."""

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
from harness.formats.sources import complaints_about
from harness.model.axis_types import NonEmpty
from harness.model.solution import Binding, CompileOptions, Language, SolutionSpec

TheirLanguage = Literal[
    "pytorch", "triton", "tlx", "cute_dsl", "cutile", "cudnn_frontend", "cutlass", "cudnn", "cublas", "cuda_cpp",
    "python", "cpp", "cuda", "tilelang",
]  # fmt: skip
"""SOL-ExecBench's two families, then FlashInfer-Bench's words that differ."""

_PYTHON_FAMILY = ("cute_dsl", "triton", "pytorch", "python")
_CPP_FAMILY = ("cuda_cpp", "cutlass", "cudnn", "cublas", "cuda", "cpp")
_NOT_RUN = ("cutile", "cudnn_frontend", "tlx", "tilelang")


class _Theirs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class TheirCompileOptions(_Theirs):
    """Flags of the compilers and the linker; what is left out has the value that SOL-ExecBench gives it."""

    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ("-O3", "--use_fast_math")
    ld_flags: tuple[str, ...] = ("-lcuda",)


class TheirSpec(_Theirs):
    """How to build and call it; `language` is FlashInfer-Bench's, `languages` SOL-ExecBench's."""

    languages: tuple[TheirLanguage, ...] = ()
    language: TheirLanguage | None = None
    target_hardware: tuple[NonEmpty, ...]
    entry_point: NonEmpty
    dependencies: tuple[str, ...] | None = None
    destination_passing_style: bool = True
    binding: Literal["tvm_ffi", "tvm-ffi", "torch"] | None = None
    compile_options: TheirCompileOptions | None = None


class TheirSource(_Theirs):
    """One file."""

    path: NonEmpty
    content: NonEmpty


class TheirSolution(_Theirs):
    """solution.json."""

    name: NonEmpty
    definition: NonEmpty
    author: NonEmpty
    description: str | None = None
    spec: TheirSpec
    sources: tuple[TheirSource, ...] = Field(min_length=1)


def read_their_solution(path: Path) -> TheirSolution:
    """A solution.json, read and checked.

    Raises:
        FormatError: the first thing that is wrong, with file, line, field and what was expected.
    """
    where = shown(path)
    text = read_text(path)
    value = parse_json(text, where=where)
    solution, errors = validated(TheirSolution, value, where=where, lines=lambda: json_lines(text))
    if solution is None:
        raise errors[0]

    def wrong(what: str, *field: str | int) -> FormatError:
        return located(what, field, where=where, lines=json_lines(text))

    _check_languages(solution, wrong_at=wrong)
    seen: set[str] = set()
    for index, source in enumerate(solution.sources):
        for what in complaints_about(source.path):
            raise wrong(f"`sources[{index}].path`: {what}", "sources", index, "path")
        if source.path in seen:
            raise wrong(f"`sources[{index}].path` `{source.path}` comes twice; expected each once", "sources", index)
        seen.add(source.path)
    file = solution.spec.entry_point.partition("::")[0]
    if solution.spec.entry_point.count("::") != 1 or file not in seen:
        entry = quoted(solution.spec.entry_point)
        what = f"`spec.entry_point` is {entry}; expected `file::function` with one of the sources as its file"
        raise wrong(what, "spec", "entry_point")
    return solution


def _check_languages(solution: TheirSolution, *, wrong_at: Callable[..., FormatError]) -> None:
    languages = solution.spec.languages or tuple(filter(None, [solution.spec.language]))
    if not languages:
        raise wrong_at("`spec.languages` is missing; expected a list of languages", "spec")
    field = "languages" if solution.spec.languages else "language"
    compiled = [name for name in languages if name in _CPP_FAMILY]
    if compiled and len(compiled) < len(languages):
        what = f"`spec.{field}` mixes {quoted(list(languages))}; expected Python languages or C++ languages, not both"
        raise wrong_at(what, "spec", field)


def our_spec(solution: TheirSolution) -> SolutionSpec:
    """What our solution.yaml says of it.

    Raises:
        FormatError: it needs a language that is not run here.
    """
    spec = solution.spec
    languages = spec.languages or tuple(filter(None, [spec.language]))
    foreign = [name for name in languages if name in _NOT_RUN]
    if foreign:
        known = ", ".join((*_PYTHON_FAMILY, *_CPP_FAMILY))
        raise FormatError(f"language `{foreign[0]}` is not run here; expected one of {known}")
    language = _our_language(languages)
    notes = " ".join(f"{solution.name} by {solution.author}".split())
    return SolutionSpec(
        language=language,
        entry=spec.entry_point,
        binding=_our_binding(spec) if language == "cuda_cpp" else None,
        destination_passing=spec.destination_passing_style,
        compile=_our_options(spec.compile_options) if language == "cuda_cpp" else CompileOptions(),
        notes=notes[:200],
    )


def _our_binding(spec: TheirSpec) -> Binding:
    """What a compiled solution says, or what its bench takes where it says nothing; Python ones may say anything."""
    if spec.binding is None:
        return "torch" if spec.languages else "tvm_ffi"
    return "torch" if spec.binding == "torch" else "tvm_ffi"


def _our_options(options: TheirCompileOptions | None) -> CompileOptions:
    if options is None:
        return CompileOptions()
    return CompileOptions(flags=options.cflags, cuda_flags=options.cuda_cflags, link_flags=options.ld_flags)


def _our_language(languages: tuple[TheirLanguage, ...]) -> Language:
    for theirs in _PYTHON_FAMILY:
        if theirs in languages:
            return "pytorch" if theirs == "python" else theirs  # type: ignore[return-value] # the others are ours too
    return "cuda_cpp"


def solution_from_json(path: Path, destination: Path, *, replace: bool = False) -> Path:
    """Write a solution.json out as the solution directory `destination`, and check it.

    Raises:
        FormatError: it is malformed, or needs what is not run here.
        ConfigurationError: the directory is there already.
    """
    theirs = read_their_solution(path)
    try:
        spec = our_spec(theirs)
    except FormatError as error:
        raise FormatError(error.message, where=shown(path)) from error
    if destination.exists() and not replace:
        raise ConfigurationError(
            "a solution is there already", where=shown(destination), remedy="overwrite it with --replace"
        )
    destination.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".import-", dir=destination.parent))
    try:
        for source in theirs.sources:
            file = staging / source.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source.content)
        (staging / SOLUTION_NAME).write_text(dump_solution(spec))
        load_solution(staging)
        staging.chmod(0o755)  # mkdtemp makes a private directory
        if destination.exists():
            shutil.rmtree(destination)
        staging.rename(destination)
    except OSError as error:  # a source named like another's directory
        raise FormatError(f"its sources cannot be written: {error.strerror}", where=shown(path)) from error
    except FormatError as error:
        raise FormatError(error.message, where=shown(path)) from error  # the staged file is gone when this is read
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return destination
