"""Shell completion: problems, suites and branches of the current workspace, from its files and without git."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import click

from harness.errors import HarnessError
from harness.workspace.directories import Workspace

Completion = Callable[[click.Context, click.Parameter, str], list[str]]
"""Function of click that returns the words which complete a typed text."""


def _problems() -> list[str]:
    from harness.formats.problems import list_problems

    return list_problems(Workspace.find().problems)


def _suites(keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(key.partition("/")[0] for key in keys))


def _branches() -> list[str]:
    from harness.model.paths import BRANCH_NAMESPACES

    heads = Workspace.find().git_common_dir / "refs" / "heads"
    files = (file for top in BRANCH_NAMESPACES for file in sorted((heads / top).rglob("*")) if file.is_file())
    return [file.relative_to(heads).as_posix() for file in files]


def _globs() -> list[str]:
    keys = _problems()
    return [*(f"{suite}/*" for suite in _suites(keys)), *keys]


def _completion(words: Callable[[], Sequence[str]]) -> Completion:
    """Return the completion by those of the words that begin with the typed text; by none outside of a workspace."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
        with suppress(HarnessError):
            return [word for word in words() if word.startswith(typed)]
        return []

    return complete


def _complete_suites(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Complete the last suite of a list with commas; `all` and `none` only as its first word."""
    from harness.workspace.shipped_files import shipped_suites

    before, comma, last = typed.rpartition(",")
    with suppress(HarnessError):
        candidates = [*shipped_suites(), *(() if before else ("all", "none"))]
        return [f"{before}{comma}{word}" for word in candidates if word.startswith(last)]
    return []


complete_problem = _completion(_problems)
complete_glob = _completion(_globs)
complete_suite = _completion(lambda: _suites(_problems()))
complete_branch = _completion(lambda: [*_problems(), *_branches()])
complete_shipped_suite = _complete_suites
