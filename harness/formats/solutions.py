"""Solution directories: solution.yaml and its sources, read and checked (docs/formats.md).

Nothing of a solution is imported or run here. What a directory may hold is decided by what it could do to the process
that runs it: no link out of it, no file that Python would import in place of a module the runner needs.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import DOCUMENT_BYTES, compose_yaml
from harness.formats.problems import Findings
from harness.formats.schema import located, shown, validated
from harness.formats.source_lines import Path as FieldPath
from harness.formats.source_lines import parse_yaml
from harness.formats.sources import MAX_SOURCE_BYTES, MAX_TOTAL_BYTES, check_entry, check_names
from harness.formats.specs import check_fit, check_spec
from harness.model.paths import SOLUTIONS
from harness.model.problem import Definition
from harness.model.solution import ParamValue, Solution, SolutionSpec

SOLUTION_NAME = "solution.yaml"
BASELINE_NAME = "baseline"
_BYTECODE = "__pycache__"


@dataclass
class _Tree:
    """The files below a solution directory, and what is wrong with them."""

    texts: dict[str, str] = field(default_factory=dict)
    """Relative path -> text, of each source that could be read."""
    errors: list[FormatError] = field(default_factory=list)
    total_bytes: int = 0


def load_solution(directory: Path) -> Solution:
    """One solution directory, read and checked.

    Raises:
        FormatError: the first thing that is wrong, with file, line, field and what was expected.
    """
    solution, errors = inspect_solution(directory)
    if solution is None:
        first, others = errors[0], len(errors) - 1
        remedy = f"and {others} more of its errors" if others else first.remedy
        raise FormatError(first.message, where=first.where, remedy=remedy) from first
    return solution


def inspect_solution(directory: Path) -> tuple[Solution | None, list[FormatError]]:
    """Read and check one solution directory, collecting every error instead of raising the first."""
    directory = Path(directory)
    where = shown(directory / SOLUTION_NAME)
    if directory.is_symlink() or not directory.is_dir():
        return None, [FormatError("no such directory; expected a solution", where=shown(directory))]
    tree = _read_tree(directory)
    text = tree.texts.pop(SOLUTION_NAME, None)
    if text is None:
        missing = [] if tree.errors else [FormatError("no such file; expected one beside the sources", where=where)]
        return None, tree.errors + missing
    spec, errors = read_spec(text, where=where)
    errors = tree.errors + errors
    if spec is None:
        return None, errors
    errors += check_names(tree.texts, where=directory)
    lines = partial(_lines, text, where)
    errors += check_entry(spec, tree.texts, where=where, lines=lines, directory=directory)
    if errors:
        return None, errors
    return Solution(directory=directory, spec=spec, sources=tuple(sorted(tree.texts))), []


def check_solution(solution: Solution, definition: Definition) -> list[FormatError]:
    """What keeps a solution from being one of this problem; [] when it fits."""
    file = solution.directory / SOLUTION_NAME
    where = shown(file)
    lines = _lines(file.read_text(), where)
    return [located(what, path, where=where, lines=lines) for path, what in check_fit(solution.spec, definition)]


def place_of_another_gpu(problem: Path, target: str) -> str | None:
    """Give a GPU without a solution one that another GPU has, of its own generation where there is one.

    Device code is built for the device it runs on: what was tuned for another is a place to begin.

    Args:
        problem: the problem's directory.
        target: whose directory is filled if it has no solution.

    Returns:
        The target whose solution it was; None where nothing was done.
    """
    solutions = problem / SOLUTIONS
    if target == "cpu" or (solutions / target / SOLUTION_NAME).is_file():
        return None
    others = {found.parent.name for found in solutions.glob(f"*/{SOLUTION_NAME}")} - {"cpu"}
    if not others:
        return None
    nearest = min(others, key=lambda other: (other[0] != target[0], other))  # NVIDIA's letter names the generation
    shutil.copytree(solutions / nearest, solutions / target, dirs_exist_ok=True)
    return nearest


def check_all_solutions(found: Findings) -> list[FormatError]:
    """Errors of every solution below a problem: `solutions/<target>/` and, where there is one, `baseline/`."""
    parent = found.directory / SOLUTIONS
    directories = sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
    if (found.directory / BASELINE_NAME).is_dir():
        directories.append(found.directory / BASELINE_NAME)
    errors: list[FormatError] = []
    for directory in directories:
        solution, wrong = inspect_solution(directory)
        errors += wrong
        if solution is not None and found.problem is not None:
            errors += check_solution(solution, found.problem.definition)
    return errors


def read_spec(text: str, *, where: str) -> tuple[SolutionSpec | None, list[FormatError]]:
    """The text of a solution.yaml, checked as far as it can be without its directory."""
    try:
        value, lines = parse_yaml(text, where=where)
    except FormatError as error:
        return None, [error]
    spec, errors = validated(SolutionSpec, value, where=where, lines=lambda: lines)
    if spec is not None:
        errors = [located(what, path, where=where, lines=lines) for path, what in check_spec(spec)]
    return (None, errors) if errors else (spec, [])


def dump_solution(spec: SolutionSpec) -> str:
    """solution.yaml of a spec: keys in the format's order, those at their default left out."""
    value = spec.model_dump(mode="json", exclude_defaults=True)
    order = [name for name in SolutionSpec.model_fields if name in value]
    return "".join(_dump({name: value[name]}) for name in order)


def param_spots(text: str) -> dict[str, tuple[int, int]]:
    """Where the value of each of a solution.yaml's `params` stands: name -> first character and the one after the last.

    Raises:
        FormatError: the text is not YAML.
    """
    top = compose_yaml(text, where=SOLUTION_NAME, max_bytes=DOCUMENT_BYTES, marks_count_characters=True)
    for key, value in top.value if isinstance(top, yaml.MappingNode) else ():
        if key.value == "params" and isinstance(value, yaml.MappingNode):
            return {name.value: (node.start_mark.index, node.end_mark.index) for name, node in value.value}
    return {}


def with_params(text: str, params: Mapping[str, ParamValue], spots: Mapping[str, tuple[int, int]] | None = None) -> str:
    """A solution.yaml with other values of some of its `params`; every other byte stays.

    Args:
        text: the solution.yaml.
        params: name -> new value.
        spots: the text's `param_spots`, from who renders many; parsing takes a millisecond.

    Raises:
        ConfigurationError: a name that is not among its params.
        FormatError: the text is not YAML.
    """
    spots = param_spots(text) if spots is None else spots
    for name in params:
        if name not in spots:
            raise ConfigurationError(f"`{name}` is not among the params of this {SOLUTION_NAME}")
    for name in sorted(params, key=lambda name: spots[name], reverse=True):
        start, end = spots[name]
        text = text[:start] + _scalar(params[name]) + text[end:]
    return text


def _scalar(value: ParamValue) -> str:
    """A scalar as it may stand anywhere, also between the brackets of a one-line mapping."""
    dumped: str = yaml.safe_dump([value], default_flow_style=True, width=2**20, allow_unicode=True)
    return dumped.strip()[1:-1]


def _dump(value: Mapping[str, object]) -> str:
    style = None if isinstance(next(iter(value.values())), dict | list) else False
    dumped: str = yaml.dump(
        value, Dumper=yaml.CSafeDumper, sort_keys=False, default_flow_style=style, allow_unicode=True, width=120
    )
    return dumped


def _lines(text: str, where: str) -> Mapping[FieldPath, int]:
    return parse_yaml(text, where=where)[1]


def _read_tree(directory: Path) -> _Tree:
    tree = _Tree()
    for here, names, files in os.walk(directory):
        inside = Path(here)
        if _BYTECODE in names:
            names.remove(_BYTECODE)  # what running the sources left behind: never a source, never shown to a runner
        for name in sorted([*names, *files]):
            _read_file(inside / name, (inside / name).relative_to(directory).as_posix(), tree)
    if tree.total_bytes > MAX_TOTAL_BYTES:
        what = f"{tree.total_bytes} bytes in all; expected at most {MAX_TOTAL_BYTES}"
        tree.errors.append(FormatError(what, where=shown(directory)))
    return tree


def _read_file(path: Path, name: str, tree: _Tree) -> None:
    status = path.lstat()
    refuse: Callable[[str], None] = lambda what: tree.errors.append(FormatError(what, where=shown(path)))  # noqa: E731
    if stat.S_ISDIR(status.st_mode):
        return
    if stat.S_ISLNK(status.st_mode):
        refuse("a symbolic link; expected plain files in a solution")
    elif not stat.S_ISREG(status.st_mode):
        refuse("not a plain file; expected plain files in a solution")
    elif status.st_size > MAX_SOURCE_BYTES:
        refuse(f"{status.st_size} bytes; expected at most {MAX_SOURCE_BYTES} a file")
    else:
        tree.total_bytes += status.st_size
        try:
            tree.texts[name] = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            refuse(f"not UTF-8 text at byte {error.start}; expected sources only")
