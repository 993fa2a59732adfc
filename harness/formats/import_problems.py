"""Problems and solutions in the field's own layouts, brought into ours.

SOL-ExecBench: a directory with definition.json and workload.jsonl a problem; a solution is one solution.json.
FlashInfer-Bench: a trace set, `definitions/<op>/<name>.json` and `workloads/<op>/<name>.jsonl`, whose workloads are
often part of trace records and name tensors relative to the trace set's root. A set without `workloads/` has them in
`traces/<author>/<op>/<name>.jsonl`, one record for each solution (docs of FlashInfer-Bench, "FlashInfer Trace").
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigurationError, FormatError
from harness.formats.problems import (
    DEFINITION_NAME,
    WORKLOADS_NAME,
    Findings,
    inspect_problem,
    read_text,
)
from harness.formats.schema import quoted, shown
from harness.formats.source_lines import parse_json
from harness.model.paths import SOLUTIONS, name_from

_OLD_DTYPES = {"float8_e4m3": "float8_e4m3fn"}
"""Names that early FlashInfer-Bench definitions use."""


@dataclass(frozen=True)
class Imported:
    """What became of one problem."""

    key: str
    source: Path
    workloads: int
    errors: tuple[FormatError, ...]
    warnings: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether it was written to `problems/`."""
        return not self.errors


def import_problems(
    source: Path, problems_dir: Path, *, suite: str | None = None, data_root: Path | None = None, replace: bool = False
) -> list[Imported]:
    """Bring every problem below `source` into `problems_dir`; those with errors are reported and not written.

    Args:
        source: a problem directory, a directory of them at any depth, or a FlashInfer-Bench trace set.
        problems_dir: where `<suite>/<name>/` is written.
        suite: by default the name of the directory a problem lies in, or of the trace set.
        data_root: where safetensors paths may lead; for a trace set also its own root.
        replace: overwrite problems that are there (their solutions stay).

    Raises:
        FormatError: there is no problem.
    """
    if not source.is_dir():
        raise FormatError("no such directory; expected problems to import", where=shown(source))
    if (source / "definitions").is_dir():
        root = source.resolve()
        found = [
            _bring(_key(suite or root.name, name), path, problems_dir, write, data_root or root, replace=replace)
            for name, path, write in _trace_set(source)
        ]
        if data_root is None:
            found = [_with_data_note(one, problems_dir, source) for one in found]
    else:
        directories = sorted(path.parent for path in source.rglob(DEFINITION_NAME))
        found = [
            _bring(
                _key(suite or path.resolve().parent.name, path.resolve().name),
                path,
                problems_dir,
                _copier(path),
                data_root,
                replace=replace,
            )
            for path in directories
        ]
    if not found:
        raise FormatError(f"no {DEFINITION_NAME} below it and no definitions/; expected problems", where=shown(source))
    return found


def _with_data_note(one: Imported, problems_dir: Path, source: Path) -> Imported:
    """A trace set's tensors stay where they are, so later checks need to know where that is."""
    workloads = problems_dir / one.key / WORKLOADS_NAME
    if not one.usable or '"safetensors"' not in workloads.read_text():
        return one
    note = f"its workloads read data from {shown(source)}: set `data_root` in harness.yaml to keep it in reach"
    return dataclasses.replace(one, warnings=(*one.warnings, note))


def _bring(
    key: str,
    source: Path,
    problems_dir: Path,
    write: Callable[[Path], None],
    data_root: Path | None,
    *,
    replace: bool,
) -> Imported:
    """Write a problem beside its place, check it there, and move it in when it is right."""
    target = problems_dir / key
    if target.exists() and not replace:
        there = FormatError(f"`{key}` is there already", where=shown(target), remedy="overwrite it with --replace")
        return Imported(key, source, 0, (there,), ())
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".import-", dir=target.parent))
    try:
        write(staging)
        found = inspect_problem(staging, key=key, data_root=data_root)
        if found.problem is not None:
            _move_in(staging, target)
    except FormatError as error:
        found = Findings(key, staging, None, (error,), ())
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()
    return Imported(
        key,
        source,
        len(found.problem.workloads) if found.problem else 0,
        tuple(_moved(error, staging, source) for error in found.errors),
        tuple(warning.replace(shown(staging), shown(source)) for warning in found.warnings),
    )


def _moved(error: FormatError, staging: Path, source: Path) -> FormatError:
    where = error.where.replace(shown(staging), shown(source)) if error.where else None
    return FormatError(error.message, where=where, remedy=error.remedy)


def _move_in(staging: Path, target: Path) -> None:
    """Put a checked problem in its place; one that was there stays whole until the new one is."""
    staging.chmod(0o755)  # mkdtemp makes a private directory
    old = None
    if target.exists():
        if (target / SOLUTIONS).is_dir():
            shutil.copytree(target / SOLUTIONS, staging / SOLUTIONS, symlinks=True)
        old = Path(tempfile.mkdtemp(prefix=".import-", dir=target.parent)) / target.name
        target.rename(old)
    staging.rename(target)
    if old is not None:
        shutil.rmtree(old.parent)


def _copier(source: Path) -> Callable[[Path], None]:
    def write(staging: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__", ".git", SOLUTIONS, "solution*.json")
        # Links are copied as links: the check then refuses them, instead of what they lead to being copied in.
        shutil.copytree(source, staging, dirs_exist_ok=True, symlinks=True, ignore=ignored)

    return write


def _trace_set(root: Path) -> Iterator[tuple[str, Path, Callable[[Path], None]]]:
    for file in sorted((root / "definitions").rglob("*.json")):
        yield file.stem, file, _translator(file, _workload_files(root, file))


def _workload_files(root: Path, definition: Path) -> list[Path]:
    """The files that hold a definition's workloads; the usual place if there are none."""
    name = f"{definition.stem}.jsonl"
    usual = root / "workloads" / definition.parent.relative_to(root / "definitions") / name
    if usual.exists():
        return [usual]
    return sorted((root / "workloads").rglob(name)) or sorted((root / "traces").rglob(name)) or [usual]


def _translator(definition: Path, workloads: Sequence[Path]) -> Callable[[Path], None]:
    def write(staging: Path) -> None:
        text = _definition_text(definition)
        (staging / DEFINITION_NAME).write_text(text)
        value = parse_json(text, where=shown(definition))
        name = str(value.get("name")) if isinstance(value, dict) else ""
        texts = [_workloads_text(file, name) for file in workloads]
        (staging / WORKLOADS_NAME).write_text(texts[0] if len(texts) == 1 else _without_repetitions(texts))

    return write


def _without_repetitions(texts: Sequence[str]) -> str:
    """Workloads of several files, each once: traces repeat a workload for each solution."""
    lines: dict[str, str] = {}
    for line in "".join(texts).split("\n"):
        if line.strip():
            value = parse_json(line, where="a workload")
            uuid = value.get("uuid") if isinstance(value, dict) else None
            lines.setdefault(uuid if isinstance(uuid, str) else line, line)
    return "\n".join(lines.values()) + "\n"


def _definition_text(file: Path) -> str:
    """A trace set's definition in our schema; the text itself where nothing differs."""
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
    """One workload a line, taken out of its trace record where it is part of one.

    Raises:
        FormatError: a record is of another definition.
    """
    lines: list[str] = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if line.strip():
            value = parse_json(line, where=shown(file), first_line=number)
            workload = value.get("workload") if isinstance(value, dict) else None
            if workload is not None and value.get("definition", definition) != definition:
                what = f"`definition` is {quoted(value['definition'])}; expected `{definition}`, the file's own"
                raise FormatError(what, where=f"{shown(file)}:{number}")
            lines.append(line if workload is None else json.dumps(workload))
        else:
            lines.append("")  # line numbers in messages stay those of the source
    return "\n".join(lines).rstrip("\n") + "\n"


def _key(suite: str, name: str) -> str:
    return f"{name_from(suite)}/{name_from(name)}"


def problem_named(name: str, problems_dir: Path, keys: Sequence[str]) -> str:
    """The key of the problem whose definition has this name.

    Raises:
        ConfigurationError: none has, or several have.
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
    found = f"{len(matching)} problems have" if matching else "no problem has"
    raise ConfigurationError(f"{found} the definition name `{name}`", remedy="say which with --problem SUITE/NAME")
