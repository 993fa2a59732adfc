"""Lookup of the problems that a command line names: directories, and globs over the keys of the workspace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import AnswerIsNo, ConfigurationError, FormatError
from harness.formats.problems import DEFINITION_NAME, Findings, inspect_problem, list_problems
from harness.model.paths import SOLUTIONS
from harness.workspace.configuration import data_root_of
from harness.workspace.directories import Workspace


def inspected(globs: Sequence[str]) -> list[Findings]:
    """Return the findings about each named problem; each argument is a directory or a glob over the workspace's keys.

    Raises:
        AnswerIsNo: a glob matches no problem.
    """
    findings: dict[str, Findings] = {}
    for word in globs or ("*",):
        directory = Path(word)
        if (directory / DEFINITION_NAME).exists():
            item = inspect_problem(directory.resolve())
            findings.setdefault(item.key, item)
            continue
        workspace = Workspace.find()
        keys = list_problems(workspace.problems, [word])
        if globs and not keys:
            raise AnswerIsNo(f"no problem matches `{word}`", remedy="see `harness problems list`")
        data_root = data_root_of(workspace)
        for key in keys:
            if key not in findings:
                findings[key] = inspect_problem(workspace.problems / key, key=key, data_root=data_root)
    return list(findings.values())


def one_problem(word: str) -> Any:  # noqa: ANN401 - a Problem; its module is imported when the verb runs
    """Return the single problem that a directory or glob names.

    Raises:
        ConfigurationError: several problems match.
        FormatError: the problem has errors.
    """
    findings = inspected([word])
    if len(findings) > 1:
        names = ", ".join(item.key for item in findings[:5])
        raise ConfigurationError(f"`{word}` matches {len(findings)} problems: {names}", remedy="name one")
    (item,) = findings
    if item.problem is None:
        first = item.errors[0]
        remedy = f"see all with `harness problems check {item.key}`"
        raise FormatError(first.message, where=first.where, remedy=remedy)
    return item.problem


def solution_targets(directory: Path) -> list[str]:
    """Return the targets for which a problem directory has a solution."""
    solutions = directory / SOLUTIONS
    return sorted(path.name for path in solutions.iterdir() if path.is_dir()) if solutions.is_dir() else []


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, such as `2 problems`.

    Args:
        number: selects the singular or the plural.
        noun: in the singular; its plural ends in `s`.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
