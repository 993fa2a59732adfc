"""Shell completion: problems, suites and branches of the current workspace, from its files and without git."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def complete_problem(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the keys of the workspace's problems that begin with the typed text.

    Args:
        context: of click, not used.
        parameter: of click, not used.
        begun: the typed text.
    """
    del context, parameter
    return [key for key in _problems() if key.startswith(begun)]


def complete_glob(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return keys of problems and `suite/*` for each suite.

    Args:
        context: of click, not used.
        parameter: of click, not used.
        begun: the typed text.
    """
    del context, parameter
    keys = _problems()
    globs = [f"{suite}/*" for suite in _suites(keys)]
    return [name for name in (*globs, *keys) if name.startswith(begun)]


def complete_suite(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the suites of the workspace.

    Args:
        context: of click, not used.
        parameter: of click, not used.
        begun: the typed text.
    """
    del context, parameter
    return [name for name in _suites(_problems()) if name.startswith(begun)]


def complete_shipped_suite(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the shipped suites after the last comma; before the first comma also `all` and `none`.

    Args:
        context: of click, not used.
        parameter: of click, not used.
        begun: the typed text.
    """
    from harness.errors import HarnessError
    from harness.workspace.shipped_files import ALL, shipped_suites

    del context, parameter
    before, comma, last = begun.rpartition(",")
    try:
        names = [*shipped_suites(), *([] if before else [ALL, "none"])]
    except HarnessError:
        return []
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def complete_branch(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return problems, and branches of agents and champions.

    Args:
        context: of click, not used.
        parameter: of click, not used.
        begun: the typed text.
    """
    del context, parameter
    return [name for name in (*_problems(), *_branches()) if name.startswith(begun)]


def _problems() -> list[str]:
    from harness.errors import HarnessError
    from harness.formats.problems import list_problems
    from harness.workspace.directories import Workspace

    try:
        return list_problems(Workspace.find().problems)
    except HarnessError:
        return []


def _suites(keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(key.partition("/")[0] for key in keys))


def _branches() -> list[str]:
    from harness.errors import HarnessError
    from harness.model.paths import BRANCH_NAMESPACES
    from harness.workspace.directories import Workspace

    try:
        heads = Workspace.find().git_common_dir / "refs" / "heads"
    except HarnessError:
        return []
    return [
        _name(heads, file) for top in BRANCH_NAMESPACES for file in sorted((heads / top).rglob("*")) if file.is_file()
    ]


def _name(heads: Path, file: Path) -> str:
    return file.relative_to(heads).as_posix()
