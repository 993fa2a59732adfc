"""Reading, checking and digests of problem directories (docs/formats.md).

No code of a problem is imported or run here: the reference is parsed with `ast`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.errors import FormatError
from harness.formats.bounded import PROBLEM_BYTES, read_bytes
from harness.formats.library_baselines import library_baselines
from harness.formats.problem_checks import definition_errors, unchecked_constraints, workload_errors
from harness.formats.schema import extra_keys, located, quoted, shown, validated
from harness.formats.source_lines import field_name, json_lines, numbered_lines, parse_json
from harness.model.paths import NAME_FORM, SOLUTIONS, is_problem, parse_problem_path
from harness.model.problem import Definition, Problem, Workload

DEFINITION_NAME = "definition.json"
WORKLOADS_NAME = "workload.jsonl"


@dataclass(frozen=True)
class Findings:
    """Result of reading one problem directory: the problem if it has no errors, and all errors and warnings."""

    key: str
    directory: Path
    problem: Problem | None
    errors: tuple[FormatError, ...]
    warnings: tuple[str, ...]


def load_problem(directory: Path, *, key: str | None = None, data_root: Path | None = None) -> Problem:
    """Return the problem of a directory after checking it.

    Args:
        directory: contains definition.json and workload.jsonl.
        key: `suite/name`; None for the last two names of the directory's path.
        data_root: directory of safetensors files besides the problem's own.

    Raises:
        FormatError: the first error, with file, line, field and the expected value; the remedy names the command that
            lists the remaining errors.
    """
    findings = inspect_problem(directory, key=key, data_root=data_root)
    if findings.problem is not None:
        return findings.problem
    first, remaining = findings.errors[0], len(findings.errors) - 1
    remedy = f"and {remaining} more: `harness problems check {findings.key}` lists them" if remaining else first.remedy
    raise FormatError(first.message, where=first.where, remedy=remedy) from first


def inspect_problem(directory: Path, *, key: str | None = None, data_root: Path | None = None) -> Findings:
    """Read and check one problem directory and collect all errors.

    Args:
        directory: contains definition.json and workload.jsonl.
        key: as of `load_problem`.
        data_root: as of `load_problem`.
    """
    directory = Path(directory)
    key = key or "/".join(directory.absolute().parts[-2:])
    errors = _check_key(key, directory)
    definition, warnings = _read_definition(directory, errors)
    workloads = _read_workloads(directory, definition, data_root, errors, warnings)
    if definition is not None:
        errors += library_baselines(directory, definition)[1]
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
    """Return the sorted keys (`suite/name`) of problem directories.

    A directory counts if it contains definition.json or workload.jsonl, valid or not.

    Args:
        problems_dir: directory of the suites.
        globs: a key must match one of them; a glob without a slash may also match the name alone.
    """
    keys = []
    for suite in subdirectories(problems_dir):
        for directory in subdirectories(suite):
            key = f"{suite.name}/{directory.name}"
            is_problem = (directory / DEFINITION_NAME).exists() or (directory / WORKLOADS_NAME).exists()
            if is_problem and any(_matches(key, glob) for glob in globs):
                keys.append(key)
    return sorted(keys)


def problem_names(files: Iterable[str], globs: Sequence[str] = ("*",)) -> list[str]:
    """Return the sorted keys of the problems in a commit.

    Args:
        files: paths of the commit's files (`problems/<suite>/<name>/...`).
        globs: as of `list_problems`.
    """
    paths = filter(None, map(parse_problem_path, files))
    keys = {path.problem for path in paths if path.inside in {DEFINITION_NAME, WORKLOADS_NAME}}
    return sorted(key for key in keys if any(_matches(key, glob) for glob in globs))


def problem_digest(directory: Path) -> str:
    """Return `sha256:…` over every file that affects judging: all files except `solutions/` and `*.md`.

    Raises:
        FormatError: the directory contains a symbolic link or special file, whose content a digest cannot fix.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in problem_files(Path(directory))}
    return _digest((name, paths[name].read_bytes()) for name in sorted(paths))


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return the `problem_digest` of a directory with these files: path relative to the directory -> content."""
    return _digest((name, files[name]) for name in sorted(files) if affects_judging(name))


def affects_judging(name: str) -> bool:
    """Return whether a file affects judging and the digest; `name` is relative to the problem's directory."""
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


def subdirectories(parent: Path) -> list[Path]:
    """Return the directories in a directory by name, without hidden ones; [] if it cannot be read."""
    try:
        return sorted(Path(entry) for entry in os.scandir(parent) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


def problem_files(directory: Path) -> list[Path]:
    """Return the files of a problem that affect judging: all files except those below `solutions/` and `*.md`.

    Raises:
        FormatError: the directory contains a symbolic link or special file.
    """
    judged_files: list[Path] = []
    for parent, names, files in os.walk(directory):
        if Path(parent) == directory and SOLUTIONS in names:
            names.remove(SOLUTIONS)
        for name in [*names, *files]:
            path = Path(parent) / name
            if is_plain_file(path, within="problem") and path.suffix != ".md":
                judged_files.append(path)
    return judged_files


def is_plain_file(path: Path, *, within: str) -> bool:
    """Return True for a plain file, False for a directory.

    Args:
        within: `problem` or `solution`, for messages.

    Raises:
        FormatError: a symbolic link or special file.
    """
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return stat.S_ISREG(mode)
    kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a plain file"
    raise FormatError(f"{kind}; expected plain files in a {within}", where=shown(path))


def _check_key(key: str, directory: Path) -> list[FormatError]:
    if is_problem(key):
        return []
    message = f"`{key}` is no problem key; expected suite/name, each of {NAME_FORM}"
    return [FormatError(message, where=shown(directory))]


def _read_definition(directory: Path, errors: list[FormatError]) -> tuple[Definition | None, list[str]]:
    """Return the definition and its warnings; None if its structure has an error. Appends to `errors`."""
    file = directory / DEFINITION_NAME
    where = shown(file)
    try:
        text = read_text(file)
        value = parse_json(text, where=where)
    except FormatError as error:
        errors.append(error)
        return None, []
    lines = json_lines(text)
    definition, structure_errors = validated(Definition, value, where=where, lines=lines)
    errors += structure_errors
    if definition is None:
        return None, []
    errors += [located(message, path, where=where, lines=lines) for path, message in definition_errors(definition)]
    warnings = [f"{where}: {warning}" for warning in unchecked_constraints(definition)]
    # Benchmarks often have descriptions and tags, which do not affect judging. The judge reads `x_distribution` of an
    # input (harness.judge.input_data.roles).
    used = {"description", "tags", "x_distribution", "x_origin", "x_profile", "x_provenance"}
    extra_names = [field_name(path) for path in extra_keys(definition)]
    unused = [name for name in extra_names if used.isdisjoint(name.split("."))]
    if unused:
        warnings.append(f"{where}: unknown keys are kept and not used: {', '.join(unused)}")
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
    workloads: list[tuple[int, Workload]] = []
    lines = numbered_lines(text)
    if not lines:
        errors.append(FormatError("no workload; expected one JSON object a line, at least one", where=where))
    for number, line in lines:
        try:
            value = parse_json(line, where=where, first_line=number)
        except FormatError as error:
            errors.append(error)
            continue
        workload, structure_errors = validated(Workload, value, where=where, lines={(): number})
        errors += structure_errors
        if workload is not None:
            workloads.append((number, workload))
    unused = dict.fromkeys(field_name(path) for _, workload in workloads for path in extra_keys(workload))
    if unused:
        warnings.append(f"{where}: unknown keys are kept and not used: {', '.join(unused)}")
    if definition is not None and not errors:
        errors += _content_errors(definition, workloads, where, [directory, *([data_root] if data_root else [])])
        makes_inputs = definition.custom_inputs_entrypoint is not None
        if makes_inputs and not all(workload.is_custom for _, workload in workloads):
            warnings.append(
                f"{where}: `custom_inputs_entrypoint` makes no input of the workloads without custom inputs"
            )
    return tuple(workload for _, workload in workloads)


def _content_errors(
    definition: Definition, workloads: Iterable[tuple[int, Workload]], where: str, roots: Sequence[Path]
) -> Iterator[FormatError]:
    line_by_uuid: dict[str, int] = {}
    for number, workload in workloads:
        first = line_by_uuid.setdefault(workload.uuid, number)
        if first != number:
            message = f"`uuid` {quoted(workload.uuid)} is also that of line {first}; expected one of its own"
            yield FormatError(message, where=f"{where}:{number}")
        for error in workload_errors(definition, workload, roots):
            yield FormatError(error.message, where=f"{where}:{number}", remedy=error.remedy)


def read_text(file: Path) -> str:
    """Return the content of a UTF-8 text file.

    Raises:
        FormatError: the file is missing, not a plain file, too large, or not UTF-8.
    """
    where = shown(file)
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise FormatError("not a plain file", where=where)
        return read_bytes(file, max_bytes=PROBLEM_BYTES, where=where).decode()
    except FileNotFoundError as error:
        raise FormatError("no such file", where=where) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise FormatError(f"not UTF-8 text at byte {error.start}", where=f"{where}:{line}") from error
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", where=where) from error
