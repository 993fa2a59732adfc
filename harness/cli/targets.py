"""Lookup of the problem and the solution that a command line names."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import ConfigurationError
from harness.formats.problems import DEFINITION_NAME, load_problem
from harness.formats.solution_json import solution_from_json
from harness.formats.solutions import SOLUTION_NAME
from harness.git.branch_commits import resolve
from harness.git.repo import Repo
from harness.model.paths import SOLUTIONS, problem_path
from harness.model.problem import Problem
from harness.workspace.configuration import data_root_of
from harness.workspace.directories import Workspace


def find_problem(name: str, workspace: Workspace | None) -> Problem:
    """Return a problem by its directory, or by its key in the workspace.

    Args:
        workspace: None outside of one.

    Raises:
        ConfigurationError: no problem has that directory or key.
    """
    for directory in (Path(name), *((workspace.problems / name,) if workspace else ())):
        if (directory / DEFINITION_NAME).is_file():
            return load_problem(directory.resolve(), data_root=_data_root(workspace))
    raise ConfigurationError(
        f"no problem `{name}`: neither a directory with {DEFINITION_NAME} nor a key of the workspace",
        remedy="harness problems list",
    )


@contextlib.contextmanager
def candidate(
    path_or_commit: str,
    problem_name: str | None,
    solution_json: str | None,
    *,
    target: str,
    workspace: Workspace | None,
) -> Iterator[tuple[Problem, Path]]:
    """Yield a problem and a solution directory, which may be temporary and is removed after the block.

    Args:
        path_or_commit: a solution directory, a problem directory, or a commit.
        problem_name: key or directory of the problem; None to find it from the path.
        solution_json: a solution.json to judge instead of a solution directory; None without one.
        target: the target of the solution in a problem or a commit.
        workspace: has the keys and commits; None outside of one.

    Raises:
        ConfigurationError: no problem or no solution is found.
    """
    path = Path(path_or_commit)
    with tempfile.TemporaryDirectory(prefix="kernel-harness-") as scratch:
        if path.is_dir():
            problem = _problem_at(path.resolve(), problem_name, workspace)
            if solution_json is not None:
                solution = solution_from_json(Path(solution_json), Path(scratch) / "solution")
            else:
                solution = _solution_at(path.resolve(), problem, target)
            yield problem, solution
        elif path.exists():
            raise ConfigurationError(f"{path} is a file", remedy="name the directory of the solution")
        else:
            yield _from_commit(path_or_commit, problem_name, target, workspace, Path(scratch))


def _problem_at(path: Path, problem_name: str | None, workspace: Workspace | None) -> Problem:
    if problem_name is not None:
        return find_problem(problem_name, workspace)
    for directory in (path, *path.parents[:3]):
        if (directory / DEFINITION_NAME).is_file():
            return load_problem(directory, data_root=_data_root(workspace))
    raise ConfigurationError(f"{path} is not inside a problem directory", remedy="name the problem: --problem P")


def _solution_at(path: Path, problem: Problem, target: str) -> Path:
    """Return a solution directory, or the solution of a problem directory for this target."""
    if (path / SOLUTION_NAME).is_file():
        return path
    if path != problem.directory.resolve():  # the problem's own solution would be judged in place of the named one
        raise ConfigurationError(f"no {SOLUTION_NAME} in {path}", remedy="name a solution directory")
    directory = problem.directory / SOLUTIONS / target
    if not (directory / SOLUTION_NAME).is_file():
        raise ConfigurationError(
            f"no {SOLUTION_NAME} in {path}, nor in {directory}", remedy="name a solution directory"
        )
    return directory


def _from_commit(
    commit: str, problem_name: str | None, target: str, workspace: Workspace | None, scratch: Path
) -> tuple[Problem, Path]:
    repo = Repo(workspace) if workspace is not None else None
    if repo is None or resolve(repo.git, commit) is None:
        where = "" if repo is not None else ", and this is no workspace"
        raise ConfigurationError(f"{commit} is neither a directory nor a commit{where}")
    if problem_name is None:
        raise ConfigurationError(f"the commit {commit} needs a problem", remedy="--problem suite/name")
    directory = repo.export(commit, problem_path(problem_name), scratch / problem_name)
    problem = load_problem(directory, key=problem_name, data_root=_data_root(workspace))
    solution = directory / SOLUTIONS / target
    if not (solution / SOLUTION_NAME).is_file():
        raise ConfigurationError(f"the commit {commit} has no solution of {problem_name} for {target}")
    return problem, solution


def _data_root(workspace: Workspace | None) -> Path | None:
    return data_root_of(workspace) if workspace is not None else None
