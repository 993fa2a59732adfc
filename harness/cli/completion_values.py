"""Shell completion: problems, suites and branches of the current workspace, from its files and without git."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from harness.errors import HarnessError
from harness.workspace.directories import Workspace

Completion = Callable[[click.Context, click.Parameter, str], list[str]]
"""Function of click that returns the words which complete a typed text."""


def _problems() -> list[str]:
    from harness.formats.problems import list_problems

    try:
        return list_problems(Workspace.find().problems)
    except HarnessError:
        return []


def _suites(keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(key.partition("/")[0] for key in keys))


def _branches() -> list[str]:
    from harness.model.paths import BRANCH_NAMESPACES

    try:
        heads = Workspace.find().git_common_dir / "refs" / "heads"
    except HarnessError:
        return []
    files = (file for top in BRANCH_NAMESPACES for file in sorted((heads / top).rglob("*")) if file.is_file())
    return [file.relative_to(heads).as_posix() for file in files]


def _globs() -> list[str]:
    keys = _problems()
    return [*(f"{suite}/*" for suite in _suites(keys)), *keys]


def _shipped_suites() -> Sequence[str]:
    from harness.workspace.shipped_files import shipped_suites

    try:
        return shipped_suites()
    except HarnessError:
        return ()


def _completion(words: Callable[[], Sequence[str]]) -> Completion:
    """Return the completion by those of the words that begin with the typed text."""
    return lambda _context, _parameter, typed: [word for word in words() if word.startswith(typed)]


def _complete_list(words: Callable[[], Sequence[str]], alone: Sequence[str]) -> Completion:
    """Return the completion of a list with commas: of its last word; the words of `alone` only as its first."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
        before, comma, last = typed.rpartition(",")
        present = words()
        candidates = [*present, *(alone if present and not before else ())]
        return [f"{before}{comma}{word}" for word in candidates if word.startswith(last)]

    return complete


complete_problem = _completion(_problems)
complete_glob = _completion(_globs)
complete_suite = _completion(lambda: _suites(_problems()))
complete_branch = _completion(lambda: [*_problems(), *_branches()])
complete_shipped_suite = _complete_list(_shipped_suites, ("all", "none"))
