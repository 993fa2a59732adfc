"""Import of problems in the layouts of SOL-ExecBench and FlashInfer-Bench, and export in the layout of SOL-ExecBench.

SOL-ExecBench has a directory with definition.json and workload.jsonl for each problem.
FlashInfer-Bench has a trace set: `definitions/<op>/<name>.json` and `workloads/<op>/<name>.jsonl`. Its workloads are
often part of trace records, and name tensors relative to the trace set's root. A set without `workloads/` has them in
`traces/<author>/<op>/<name>.jsonl`, one record for each solution (docs of FlashInfer-Bench, "FlashInfer Trace").
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.errors import ConfigurationError, FormatError
from harness.formats.problems import (
    DEFINITION_NAME,
    WORKLOADS_NAME,
    Findings,
    inspect_problem,
    problem_files,
    read_text,
)
from harness.formats.schema import quoted, shown
from harness.formats.source_lines import parse_json
from harness.model.paths import PROBLEMS, SOLUTIONS, WORKTREES, name_from
from harness.model.problem import Problem

_OLD_DTYPES = {"float8_e4m3": "float8_e4m3fn"}
"""Names of dtypes in early FlashInfer-Bench definitions -> names in this project's schema."""


@dataclass(frozen=True)
class ImportResult:
    """Result of the import of one problem."""

    key: str
    source: Path
    workloads: int
    errors: tuple[FormatError, ...]
    warnings: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """True if the problem was written to `problems_dir`."""
        return not self.errors


def import_problems(
    source: Path, problems_dir: Path, *, suite: str | None = None, data_root: Path | None = None, replace: bool = False
) -> list[ImportResult]:
    """Import every problem below `source` into `problems_dir`; problems with errors are reported and not written.

    Args:
        source: a problem directory, a directory that contains them at any depth, or a FlashInfer-Bench trace set.
        problems_dir: directory in which `<suite>/<name>/` is written.
        suite: suite of the problems; None for the name of the problem's parent directory, or of the trace set.
        data_root: directory of safetensors files; None for the root of a trace set.
        replace: overwrite existing problems; their solutions are kept.

    Returns:
        One result for each problem, in the order of their paths.

    Raises:
        FormatError: `source` is not a directory or contains no problem.
    """
    if not source.is_dir():
        raise FormatError("no such directory; expected problems to import", where=shown(source))
    import_one = partial(_import_one, problems_dir, replace=replace)
    results = []
    if (source / "definitions").is_dir():
        root = source.resolve()
        for file in sorted((source / "definitions").rglob("*.json")):
            key = _problem_key(suite or root.name, file.stem)
            result = import_one(key, file, partial(_translate, source, file), data_root or root)
            results.append(result if data_root else _with_data_root_warning(result, problems_dir, source))
    else:
        for path in _problem_directories(source):
            key = _problem_key(suite or path.resolve().parent.name, path.resolve().name)
            results.append(import_one(key, path, partial(_copy, path), data_root))
    if not results:
        raise FormatError(f"no {DEFINITION_NAME} below it and no definitions/; expected problems", where=shown(source))
    return results


def _problem_directories(source: Path) -> list[Path]:
    """Return the directories of problems below a directory, without hidden ones; of a workspace those in problems/."""
    is_workspace = (source / PROBLEMS).is_dir() and (source / WORKTREES).is_dir()
    root = source / PROBLEMS if is_workspace else source
    directories = (file.parent for file in root.rglob(DEFINITION_NAME))
    return sorted(
        path for path in directories if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def _with_data_root_warning(result: ImportResult, problems_dir: Path, source: Path) -> ImportResult:
    """Add a warning to a problem with tensors: they stay in the trace set, so later checks need its path."""
    workloads = problems_dir / result.key / WORKLOADS_NAME
    if not result.usable or '"safetensors"' not in workloads.read_text():
        return result
    warning = f"its workloads read data from {shown(source)}: set `data_root` in harness.yaml to keep it in reach"
    return dataclasses.replace(result, warnings=(*result.warnings, warning))


def _import_one(
    problems_dir: Path, key: str, source: Path, write: Callable[[Path], None], data_root: Path | None, *, replace: bool
) -> ImportResult:
    """Write a problem to a temporary directory, check it there, and move it to its place if it has no errors."""
    target = problems_dir / key
    if target.exists() and not replace:
        exists = FormatError(f"`{key}` is there already", where=shown(target), remedy="overwrite it with --replace")
        return ImportResult(key, source, 0, (exists,), ())
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".import-", dir=target.parent))
    try:
        write(staging)
        findings = inspect_problem(staging, key=key, data_root=data_root)
        if findings.problem is not None:
            if (target / SOLUTIONS).is_dir():
                shutil.copytree(target / SOLUTIONS, staging / SOLUTIONS, symlinks=True)
            move_into_place(staging, target)
    except FormatError as error:
        findings = Findings(key, staging, None, (error,), ())
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()
    return ImportResult(
        key,
        source,
        len(findings.problem.workloads) if findings.problem else 0,
        tuple(_at_source(error, staging, source) for error in findings.errors),
        tuple(warning.replace(shown(staging), shown(source)) for warning in findings.warnings),
    )


def _at_source(error: FormatError, staging: Path, source: Path) -> FormatError:
    """Return an error that names the source instead of the temporary directory."""
    where = error.where.replace(shown(staging), shown(source)) if error.where else None
    return FormatError(error.message, where=where, remedy=error.remedy)


def move_into_place(staging: Path, target: Path) -> None:
    """Move a checked directory to its place; a directory that it replaces is deleted after the move.

    Args:
        staging: a temporary directory beside `target`.
        target: the place, which may exist.
    """
    staging.chmod(0o755)  # mkdtemp creates a private directory
    replaced = None
    if target.exists():
        replaced = Path(tempfile.mkdtemp(prefix=".import-", dir=target.parent)) / target.name
        target.rename(replaced)
    staging.rename(target)
    if replaced is not None:
        shutil.rmtree(replaced.parent)


def _copy(source: Path, staging: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".git", SOLUTIONS, "solution*.json")
    # Links are copied as links, so that the check refuses them. Otherwise their targets would be imported.
    shutil.copytree(source, staging, dirs_exist_ok=True, symlinks=True, ignore=ignored)


def _workload_files(root: Path, definition: Path) -> list[Path]:
    """Return the files with a definition's workloads; the default path if there is no such file."""
    name = f"{definition.stem}.jsonl"
    default = root / "workloads" / definition.parent.relative_to(root / "definitions") / name
    if default.exists():
        return [default]
    return sorted((root / "workloads").rglob(name)) or sorted((root / "traces").rglob(name)) or [default]


def _translate(root: Path, definition: Path, staging: Path) -> None:
    text = _definition_text(definition)
    (staging / DEFINITION_NAME).write_text(text)
    value = parse_json(text, where=shown(definition))
    name = str(value.get("name")) if isinstance(value, dict) else ""
    texts = [_workloads_text(file, name) for file in _workload_files(root, definition)]
    (staging / WORKLOADS_NAME).write_text(texts[0] if len(texts) == 1 else _without_repetitions(texts))


def _without_repetitions(texts: Sequence[str]) -> str:
    """Return the workloads of several files without repetitions: traces repeat a workload for each solution."""
    lines: dict[str, str] = {}
    for line in "".join(texts).split("\n"):
        if line.strip():
            value = parse_json(line, where="a workload")
            uuid = value.get("uuid") if isinstance(value, dict) else None
            lines.setdefault(uuid if isinstance(uuid, str) else line, line)
    return "\n".join(lines.values()) + "\n"


def _definition_text(file: Path) -> str:
    """Return a trace set's definition in this project's schema; the original text if nothing differs."""
    text = read_text(file)
    value = parse_json(text, where=shown(file))
    changed = False
    if isinstance(value, dict):
        for section in ("inputs", "outputs"):
            tensors = value.get(section)
            for spec in tensors.values() if isinstance(tensors, dict) else ():
                if isinstance(spec, dict) and isinstance(spec.get("dtype"), str) and spec["dtype"] in _OLD_DTYPES:
                    spec["dtype"] = _OLD_DTYPES[spec["dtype"]]
                    changed = True
    return json.dumps(value, indent=2) + "\n" if changed else text


def _workloads_text(file: Path, definition: str) -> str:
    """Return one workload per line, extracted from its trace record if it is part of one.

    Raises:
        FormatError: a record belongs to another definition.
    """
    lines: list[str] = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if line.strip():
            value = parse_json(line, where=shown(file), first_line=number)
            workload = value.get("workload") if isinstance(value, dict) else None
            if workload is not None and value.get("definition", definition) != definition:
                message = f"`definition` is {quoted(value['definition'])}; expected `{definition}`, the file's own"
                raise FormatError(message, where=f"{shown(file)}:{number}")
            lines.append(line if workload is None else json.dumps(workload))
        else:
            lines.append("")  # keeps the line numbers in messages those of the source
    return "\n".join(lines).rstrip("\n") + "\n"


def _problem_key(suite: str, name: str) -> str:
    return f"{name_from(suite)}/{name_from(name)}"


def problem_named(name: str, problems_dir: Path, keys: Sequence[str]) -> str:
    """Return the key of the problem whose definition has this name.

    Args:
        name: `name` in definition.json.
        problems_dir: directory of the suites.
        keys: keys of the problems to search; problems with an invalid definition.json are ignored.

    Raises:
        ConfigurationError: no problem or several problems have the name.
    """
    matching = []
    for key in keys:
        try:
            value = parse_json(read_text(problems_dir / key / DEFINITION_NAME), where=key)
        except FormatError:
            continue
        if isinstance(value, dict) and value.get("name") == name:
            matching.append(key)
    if len(matching) == 1:
        return matching[0]
    subject = f"{len(matching)} problems have" if matching else "no problem has"
    raise ConfigurationError(
        f"{subject} the definition name `{name}`", remedy="name the problem with --problem SUITE/NAME"
    )


def export_problem(problem: Problem, into: Path, *, replace: bool = False) -> Path:
    """Copy the files of a problem to `into/<suite>/<name>`, without its solutions and notes.

    The schema is that of SOL-ExecBench, whose tools keep and ignore the keys `x_distribution`, `x_updates` and
    `x_provenance`. All other files that affect judging are copied too, so that an import gives the same digest.

    Args:
        into: directory of the exported suites.

    Returns:
        Directory of the exported problem.

    Raises:
        FormatError: the directory exists and `replace` is false.
    """
    target = into / problem.key
    if target.exists():
        if not replace:
            raise FormatError(
                f"`{problem.key}` is there already", where=shown(target), remedy="overwrite it with --replace"
            )
        shutil.rmtree(target)
    for file in problem_files(problem.directory):
        copy = target / file.relative_to(problem.directory)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return target
