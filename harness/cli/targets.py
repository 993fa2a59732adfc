"""What a person names on the command line, as a problem and a solution directory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import ConfigurationError
from harness.formats.import_solutions import solution_from_json
from harness.formats.problems import DEFINITION_NAME, load_problem
from harness.formats.solutions import SOLUTION_NAME
from harness.model.paths import SOLUTIONS, problem_path
from harness.model.problem import Problem
from harness.workspace.configuration import data_root_of
from harness.workspace.directories import Workspace


def find_problem(named: str, workspace: Workspace | None) -> Problem:
    """A problem by its directory, or by its key in the workspace.

    Raises:
        ConfigurationError: there is neither.
    """
    for directory in (Path(named), *((workspace.problems / named,) if workspace else ())):
        if (directory / DEFINITION_NAME).is_file():
            return load_problem(directory.resolve(), data_root=_data_root(workspace))
    raise ConfigurationError(
        f"no problem `{named}`: neither a directory with {DEFINITION_NAME} nor a key of the workspace",
        remedy="harness problems list",
    )


@contextlib.contextmanager
def candidate(
    what: str, named: str | None, theirs: str | None, *, target: str, workspace: Workspace | None
) -> Iterator[tuple[Problem, Path]]:
    """The problem and a solution directory that lasts as long as the block.

    Args:
        what: a solution directory, a problem directory, or a commit.
        named: the problem, where `what` does not say it.
        theirs: a solution.json, written out for the block.
        target: whose solution to take from a problem or a commit.
        workspace: where keys and commits are looked up.

    Raises:
        ConfigurationError: it does not lead to a problem and a solution; says what is missing.
    """
    path = Path(what)
    with tempfile.TemporaryDirectory(prefix="kernel-harness-") as scratch:
        if path.is_dir():
            problem = _problem_at(path.resolve(), named, workspace)
            if theirs is not None:
                solution = solution_from_json(Path(theirs), Path(scratch) / "solution")
            else:
                solution = _solution_at(path.resolve(), problem, target)
            yield problem, solution
        else:
            yield _from_commit(what, named, target, workspace, Path(scratch))


def _problem_at(path: Path, named: str | None, workspace: Workspace | None) -> Problem:
    if named is not None:
        return find_problem(named, workspace)
    for directory in (path, *path.parents[:3]):
        if (directory / DEFINITION_NAME).is_file():
            return load_problem(directory, data_root=_data_root(workspace))
    raise ConfigurationError(f"{path} does not lie in a problem", remedy="name the problem: --problem P")


def _solution_at(path: Path, problem: Problem, target: str) -> Path:
    directory = path if (path / SOLUTION_NAME).is_file() else problem.directory / SOLUTIONS / target
    if not (directory / SOLUTION_NAME).is_file():
        raise ConfigurationError(
            f"no {SOLUTION_NAME} in {path}, nor in {directory}",
            remedy="name a solution directory, or give --solution solution.json",
        )
    return directory


def _from_commit(
    commit: str, named: str | None, target: str, workspace: Workspace | None, scratch: Path
) -> tuple[Problem, Path]:
    if workspace is None:
        raise ConfigurationError(f"{commit}: no such directory, and no workspace here to look a commit up in")
    if named is None:
        raise ConfigurationError(f"which problem of the commit {commit}?", remedy="name it: --problem suite/name")
    from harness.git.repo import Repo

    directory = Repo(workspace).export(commit, problem_path(named), scratch / named)
    problem = load_problem(directory, key=named, data_root=_data_root(workspace))
    return problem, _solution_at(directory, problem, target)


def _data_root(workspace: Workspace | None) -> Path | None:
    return data_root_of(workspace) if workspace is not None else None
