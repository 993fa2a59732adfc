"""Reading and checks of solution directories: solution.yaml and its sources (docs/formats.md).

No code of a solution is imported or run here. The checks refuse files that could harm the process that runs the
solution: links, and files that Python would import instead of a module of the runner.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import ClassVar

import yaml

from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import DOCUMENT_BYTES, compose_yaml
from harness.formats.problems import Findings, is_plain_file, subdirectories
from harness.formats.schema import located, shown, validated
from harness.formats.solution_checks import (
    MAX_SOURCE_BYTES,
    MAX_TOTAL_BYTES,
    check_entry,
    check_fit,
    check_spec,
    path_errors,
)
from harness.formats.source_lines import FieldPath, parse_yaml
from harness.model.paths import SOLUTIONS
from harness.model.problem import Definition
from harness.model.solution import ParamValue, Solution, SolutionSpec
from harness.model.verdict import Verdict

SOLUTION_NAME = "solution.yaml"
BASELINE_NAME = "baseline"
_BYTECODE = "__pycache__"


def load_solution(directory: Path) -> Solution:
    """Return the solution of a directory after checking it.

    Raises:
        FormatError: the first error, with file, line, field and the expected value.
    """
    solution, errors = inspect_solution(directory)
    if solution is None:
        first, remaining = errors[0], len(errors) - 1
        remedy = f"and {remaining} more of its errors" if remaining else first.remedy
        raise FormatError(first.message, where=first.where, remedy=remedy) from first
    return solution


def inspect_solution(directory: Path) -> tuple[Solution | None, list[FormatError]]:
    """Read and check one solution directory and collect all errors; the solution is None if there are any."""
    directory = Path(directory)
    where = shown(directory / SOLUTION_NAME)
    if directory.is_symlink() or not directory.is_dir():
        return None, [FormatError("no such directory; expected a solution", where=shown(directory))]
    texts, errors = _read_texts(directory)
    text = texts.pop(SOLUTION_NAME, None)
    if text is None:
        return None, errors or [FormatError("no such file; expected one beside the sources", where=where)]
    spec, lines, spec_errors = read_spec(text, where=where)
    errors += spec_errors
    if spec is None:
        return None, errors
    errors += [FormatError(message, where=shown(directory / name)) for name in texts for message in path_errors(name)]
    errors += check_entry(spec, texts, where=where, lines=lines, directory=directory)
    if errors:
        return None, errors
    return Solution(directory=directory, spec=spec, sources=tuple(sorted(texts))), []


def check_solution(solution: Solution, definition: Definition) -> list[FormatError]:
    """Return the errors of a solution with respect to one problem; [] if it fits the problem."""
    file = solution.directory / SOLUTION_NAME
    where = shown(file)
    lines = parse_yaml(file.read_text(), where=where)[1]
    return [located(message, path, where=where, lines=lines) for path, message in check_fit(solution.spec, definition)]


def copy_from_another_gpu(problem: Path, target: str) -> str | None:
    """Copy a solution of another GPU to a GPU without one; prefer a GPU of the same generation.

    Device code is built for the device that runs it, so a solution for another GPU is a valid starting point.

    Args:
        target: the GPU; nothing is copied if it has a solution.

    Returns:
        Target of the copied solution; None if nothing was copied.
    """
    solutions = problem / SOLUTIONS
    if target == "cpu" or (solutions / target / SOLUTION_NAME).is_file():
        return None
    gpus = {file.parent.name for file in solutions.glob(f"*/{SOLUTION_NAME}")} - {"cpu"}
    if not gpus:
        return None
    nearest = min(gpus, key=lambda gpu: (gpu[0] != target[0], gpu))  # the first letter names NVIDIA's generation
    shutil.copytree(solutions / nearest, solutions / target, dirs_exist_ok=True)
    return nearest


def check_all_solutions(findings: Findings) -> list[FormatError]:
    """Return the errors of every solution of a problem: `solutions/<target>/` and, if it exists, `baseline/`."""
    directories = subdirectories(findings.directory / SOLUTIONS)
    if (findings.directory / BASELINE_NAME).is_dir():
        directories.append(findings.directory / BASELINE_NAME)
    errors: list[FormatError] = []
    for directory in directories:
        solution, solution_errors = inspect_solution(directory)
        errors += solution_errors
        if solution is not None and findings.problem is not None:
            errors += check_solution(solution, findings.problem.definition)
    return errors


def read_spec(text: str, *, where: str) -> tuple[SolutionSpec | None, Mapping[FieldPath, int], list[FormatError]]:
    """Return the spec of a solution.yaml, the line of each field, and the errors; the sources are not checked.

    The spec is None if there are errors.

    Args:
        text: content of solution.yaml.
    """
    try:
        value, lines = parse_yaml(text, where=where)
    except FormatError as error:
        return None, {}, [error]
    spec, errors = validated(SolutionSpec, value, where=where, lines=lines)
    if spec is not None:
        errors = [located(message, path, where=where, lines=lines) for path, message in check_spec(spec)]
    return None if errors else spec, lines, errors


def dump_solution(spec: SolutionSpec) -> str:
    """Return the solution.yaml of a spec: keys in the format's order, without those at their default."""
    value = spec.model_dump(mode="json", exclude_defaults=True)
    order = [name for name in SolutionSpec.model_fields if name in value]
    return "".join(_dump(name, value[name]) for name in order)


def param_positions(text: str) -> dict[str, tuple[int, int]]:
    """Return the position of each value of `params` in a solution.yaml: name -> (start, end) in characters.

    Raises:
        FormatError: the text is not YAML.
    """
    top = compose_yaml(text, where=SOLUTION_NAME, max_bytes=DOCUMENT_BYTES, marks_count_characters=True)
    for key, value in top.value if isinstance(top, yaml.MappingNode) else ():
        if key.value == "params" and isinstance(value, yaml.MappingNode):
            return {name.value: (node.start_mark.index, node.end_mark.index) for name, node in value.value}
    return {}


def with_params(
    text: str, params: Mapping[str, ParamValue], positions: Mapping[str, tuple[int, int]] | None = None
) -> str:
    """Return a solution.yaml with new values of some `params`; every other byte is unchanged.

    Args:
        text: content of solution.yaml.
        params: name -> new value.
        positions: the text's `param_positions`, for callers that render many texts: parsing takes a millisecond.

    Raises:
        ConfigurationError: a name is not among the params of the text.
        FormatError: the text is not YAML.
    """
    positions = param_positions(text) if positions is None else positions
    for name in params:
        if name not in positions:
            raise ConfigurationError(f"`{name}` is not among the params of this {SOLUTION_NAME}")
    for name in sorted(params, key=lambda name: positions[name], reverse=True):
        start, end = positions[name]
        text = text[:start] + _scalar(params[name]) + text[end:]
    return text


def _scalar(value: ParamValue) -> str:
    """Return a scalar as YAML that is valid anywhere, including inside a one-line mapping."""
    return str(yaml.safe_dump([value], default_flow_style=True, width=2**20, allow_unicode=True)).strip()[1:-1]


def _dump(name: str, value: object) -> str:
    style = None if isinstance(value, dict | list) else False
    dumped: str = yaml.dump(
        {name: value}, Dumper=yaml.CSafeDumper, sort_keys=False, default_flow_style=style, allow_unicode=True, width=120
    )
    return dumped


def _read_texts(directory: Path) -> tuple[dict[str, str], list[FormatError]]:
    """Return the text of each readable source by relative path, and the errors of the other files."""
    texts: dict[str, str] = {}
    errors: list[FormatError] = []
    total_bytes = 0
    for parent, names, files in os.walk(directory):
        if _BYTECODE in names:
            names.remove(_BYTECODE)  # left by running the sources; never a source, and never shown to a runner
        for name in sorted([*names, *files]):
            path = Path(parent) / name
            try:
                if not is_plain_file(path, within="solution"):
                    continue
                size = path.lstat().st_size
                if size > MAX_SOURCE_BYTES:
                    message = f"{size} bytes; expected at most {MAX_SOURCE_BYTES} a file"
                    errors.append(FormatError(message, where=shown(path)))
                    continue
                total_bytes += size
                texts[path.relative_to(directory).as_posix()] = path.read_bytes().decode()
            except UnicodeDecodeError as error:
                message = f"not UTF-8 text at byte {error.start}; expected sources only"
                errors.append(FormatError(message, where=shown(path)))
            except FormatError as error:
                errors.append(error)
    if total_bytes > MAX_TOTAL_BYTES:
        message = f"{total_bytes} bytes in all; expected at most {MAX_TOTAL_BYTES}"
        errors.append(FormatError(message, where=shown(directory)))
    return texts, errors


class UnusableSolutionError(FormatError):
    """A candidate is not built, because it is not a valid solution of its problem, run or device."""

    verdict: ClassVar[Verdict] = Verdict.COMPILE_ERROR
    """Verdict of every such candidate, from the daemon and from the judge."""

    def __init__(self, message: str, *, where: str | None = None, language: str = "") -> None:
        super().__init__(message, where=where)
        self.language = language
        """Language of the solution; empty where solution.yaml cannot be read."""

    @property
    def reason(self) -> str:
        """The reason for the ledger entry, in one line."""
        return " ".join(str(self).split())


def usable_solution(directory: Path, definition: Definition, languages: Collection[str], only_in: str) -> Solution:
    """Return the solution of a directory after checking it against its problem.

    Args:
        directory: a snapshot of the candidate.
        languages: allowed languages; empty for all.
        only_in: subject and verb of the message about other languages, such as "this run allows".

    Raises:
        UnusableSolutionError: the solution is malformed, does not fit the problem, or its language is not allowed.
            Paths in the message are relative to the directory.
    """
    try:
        solution = load_solution(directory)
    except FormatError as error:
        raise _unusable(error, directory) from error
    language = solution.spec.language
    for misfit in check_solution(solution, definition):
        raise _unusable(misfit, directory, language)
    if languages and language not in languages:
        message = f"`language` is {language}; {only_in} {', '.join(languages)}"
        raise UnusableSolutionError(message, where=SOLUTION_NAME, language=language)
    return solution


def _unusable(error: FormatError, directory: Path, language: str = "") -> UnusableSolutionError:
    """Return the error with a path relative to the solution's directory instead of the snapshot's path in a cache."""
    where = (error.where or "").rpartition(directory.name)[2].lstrip("/")
    return UnusableSolutionError(error.message, where=where or None, language=language)
