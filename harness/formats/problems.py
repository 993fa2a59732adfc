"""Problem directories: read, checked and digested (docs/formats.md).

Nothing of a problem is imported or run here: the reference is read with `ast`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.errors import FormatError
from harness.formats.bounded import PROBLEM_BYTES
from harness.formats.definitions import check_definition
from harness.formats.schema import extra_keys, shown, validated
from harness.formats.source_lines import Path as FieldPath
from harness.formats.source_lines import field_name, json_lines, parse_json
from harness.formats.workloads import check_workloads
from harness.model.paths import NAME_FORM, SOLUTIONS, is_problem, parse_problem_path
from harness.model.problem import Definition, Problem, Workload

DEFINITION_NAME = "definition.json"
WORKLOADS_NAME = "workload.jsonl"


@dataclass(frozen=True)
class Findings:
    """What reading one problem directory found: the problem, unless there are errors."""

    key: str
    directory: Path
    problem: Problem | None
    errors: tuple[FormatError, ...]
    warnings: tuple[str, ...]


def load_problem(directory: Path, *, key: str | None = None, data_root: Path | None = None) -> Problem:
    """One problem directory, read and checked.

    Args:
        directory: holds definition.json and workload.jsonl.
        key: `suite/name`; by default the directory's own last two names.
        data_root: where safetensors paths may lead besides the directory.

    Raises:
        FormatError: the first thing that is wrong, with file, line, field and what was expected; the remedy says
            how to see the others.
    """
    found = inspect_problem(directory, key=key, data_root=data_root)
    if found.problem is not None:
        return found.problem
    first, others = found.errors[0], len(found.errors) - 1
    remedy = f"and {others} more: `harness problems check {found.key}` lists them" if others else first.remedy
    raise FormatError(first.message, where=first.where, remedy=remedy) from first


def inspect_problem(directory: Path, *, key: str | None = None, data_root: Path | None = None) -> Findings:
    """Read and check one problem directory, collecting every error instead of raising the first."""
    directory = Path(directory)
    key = key or "/".join(directory.absolute().parts[-2:])
    errors = _check_key(key, directory)
    definition, warnings = _read_definition(directory, errors)
    workloads = _read_workloads(directory, definition, data_root, errors, warnings)
    digest = ""
    try:
        digest = problem_digest(directory)
    except FormatError as error:
        errors.append(error)
    problem = None
    if definition is not None and not errors:
        problem = Problem(
            key=key,
            directory=directory,
            data_root=data_root,
            digest=digest,
            definition=definition,
            workloads=workloads,
            warnings=tuple(warnings),
        )
    return Findings(key, directory, problem, tuple(errors), tuple(warnings))


def list_problems(problems_dir: Path, globs: Sequence[str] = ("*",)) -> list[str]:
    """Keys (`suite/name`, sorted) of the problem directories that match any of `globs`.

    A directory counts when it holds definition.json or workload.jsonl, whole or not. A glob without a slash is also
    tried on the name alone.
    """
    keys = []
    for suite in _directories(problems_dir):
        for directory in _directories(suite):
            key = f"{suite.name}/{directory.name}"
            is_problem = (directory / DEFINITION_NAME).exists() or (directory / WORKLOADS_NAME).exists()
            if is_problem and any(_matches(key, glob) for glob in globs):
                keys.append(key)
    return sorted(keys)


def problem_names(files: Iterable[str], globs: Sequence[str] = ("*",)) -> list[str]:
    """Like `list_problems`, from the paths of a commit (`problems/<suite>/<name>/...`)."""
    places = filter(None, map(parse_problem_path, files))
    keys = {place.problem for place in places if place.inside in {DEFINITION_NAME, WORKLOADS_NAME}}
    return sorted(key for key in keys if any(_matches(key, glob) for glob in globs))


def problem_digest(directory: Path) -> str:
    """`sha256:…` over every file that takes part in judging: all but `solutions/` and `*.md`.

    Raises:
        FormatError: a symbolic link or special file, which a digest could not pin down.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in problem_files(Path(directory))}
    return _digest((name, paths[name].read_bytes()) for name in sorted(paths))


def digest_of(files: Mapping[str, bytes]) -> str:
    """What `problem_digest` says of a directory with these files: name relative to it -> content."""
    return _digest((name, files[name]) for name in sorted(files) if takes_part(name))


def takes_part(name: str) -> bool:
    """Whether a file of a problem, named relative to its directory, takes part in judging and so in the digest."""
    return not name.startswith(f"{SOLUTIONS}/") and PurePosixPath(name).suffix != ".md"


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256(b"kernel-harness problem 1\n")
    for name, data in files:
        encoded = name.encode("utf-8", "surrogateescape")
        digest.update(b"%d %s\n%d\n" % (len(encoded), encoded, len(data)))
        digest.update(data)
    return f"sha256:{digest.hexdigest()}"


def _matches(key: str, glob: str) -> bool:
    if fnmatch.fnmatchcase(key, glob.removesuffix("/")):
        return True
    return "/" not in glob and fnmatch.fnmatchcase(key.partition("/")[2], glob)


def _directories(parent: Path) -> list[Path]:
    try:
        return sorted(Path(entry) for entry in os.scandir(parent) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:  # no such directory holds no problems
        return []


def problem_files(directory: Path) -> list[Path]:
    """The files of a problem that take part in judging: all but those below `solutions/` and `*.md`.

    Raises:
        FormatError: a symbolic link or special file.
    """
    found: list[Path] = []
    for here, names, files in os.walk(directory):
        inside = Path(here)
        if inside == directory and SOLUTIONS in names:
            names.remove(SOLUTIONS)
        for name in [*names, *files]:
            path = inside / name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise FormatError("a symbolic link; expected plain files in a problem", where=shown(path))
            if stat.S_ISREG(mode):
                if path.suffix != ".md":
                    found.append(path)
            elif not stat.S_ISDIR(mode):
                raise FormatError("not a plain file; expected plain files in a problem", where=shown(path))
    return found


def _check_key(key: str, directory: Path) -> list[FormatError]:
    if is_problem(key):
        return []
    what = f"`{key}` is no problem key; expected suite/name, each of {NAME_FORM}"
    return [FormatError(what, where=shown(directory))]


def _read_definition(directory: Path, errors: list[FormatError]) -> tuple[Definition | None, list[str]]:
    """The definition and warnings about it; None once there is an error in its structure."""
    file = directory / DEFINITION_NAME
    where = shown(file)
    try:
        text = read_text(file)
        value = parse_json(text, where=where)
    except FormatError as error:
        errors.append(error)
        return None, []
    definition, wrong = validated(Definition, value, where=where, lines=lambda: json_lines(text))
    errors += wrong
    if definition is None:
        return None, []
    wrong, warnings = check_definition(definition, where=where, lines=lambda: json_lines(text))
    errors += wrong
    unknown = [field_name(path) for path in extra_keys(definition)]
    # Descriptions and tags are the field's own habit and say nothing about how a problem is judged; the judge reads
    # `x_distribution` of an input (harness.judge.input_data.roles).
    used = {"description", "tags", "x_distribution", "x_origin", "x_profile", "x_provenance"}
    strange = [name for name in unknown if used.isdisjoint(name.split("."))]
    if strange:
        warnings.append(f"{where}: unknown keys are kept and not used: {', '.join(strange)}")
    return definition, warnings


def _read_workloads(
    directory: Path,
    definition: Definition | None,
    data_root: Path | None,
    errors: list[FormatError],
    warnings: list[str],
) -> tuple[Workload, ...]:
    file = directory / WORKLOADS_NAME
    where = shown(file)
    try:
        text = read_text(file)
    except FormatError as error:
        errors.append(error)
        return ()
    found: list[tuple[int, Workload]] = []
    empty = True
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        empty = False
        try:
            value = parse_json(line, where=where, first_line=number)
        except FormatError as error:
            errors.append(error)
            continue
        workload, wrong = validated(Workload, value, where=where, lines=_on_line(number))
        errors += wrong
        if workload is not None:
            found.append((number, workload))
    if empty:
        errors.append(FormatError("no workload; expected one JSON object a line, at least one", where=where))
    unknown = dict.fromkeys(field_name(path) for _, workload in found for path in extra_keys(workload))
    if unknown:
        warnings.append(f"{where}: unknown keys are kept and not used: {', '.join(unknown)}")
    if definition is not None and not errors:
        wrong, notes = check_workloads(definition, found, where=where, directory=directory, data_root=data_root)
        errors += wrong
        warnings += notes
    return tuple(workload for _, workload in found)


def _on_line(number: int) -> Callable[[], Mapping[FieldPath, int]]:
    return lambda: {(): number}


def read_text(file: Path) -> str:
    """A UTF-8 text file.

    Raises:
        FormatError: missing, not a plain file, too large, or not UTF-8.
    """
    where = shown(file)
    try:
        mode = file.stat()
        if not stat.S_ISREG(mode.st_mode):
            raise FormatError("not a plain file", where=where)
        if mode.st_size > PROBLEM_BYTES:
            raise FormatError(f"{mode.st_size} bytes; expected at most {PROBLEM_BYTES}", where=where)
        return file.read_bytes().decode()
    except FileNotFoundError as error:
        raise FormatError("no such file", where=where) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise FormatError(f"not UTF-8 text at byte {error.start}", where=f"{where}:{line}") from error
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", where=where) from error
