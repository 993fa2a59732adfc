"""Snapshots of problems and candidates as files, from git objects, never from a working directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.errors import FormatError, RepositoryError
from harness.failpoints import failpoint
from harness.formats.problems import load_problem, problem_digest
from harness.git.repo import Repo
from harness.model.paths import PROBLEMS, SOLUTIONS, problem_path, solution_path
from harness.model.problem import Problem
from harness.workspace.directories import Workspace


class Snapshots:
    """Problems and candidates in the cache, by content. Not thread-safe.

    Args:
        data_root: the directory to which a problem's safetensors paths may lead besides its own.
    """

    def __init__(self, workspace: Workspace, repo: Repo, data_root: Path | None = None) -> None:
        self._repo = repo
        self._data_root = data_root
        self._problems_dir = workspace.cache / PROBLEMS
        self._candidates_dir = workspace.cache / "candidates"
        self._trees: dict[str, str | None] = {}
        """Problem -> tree id of its directory, in the state of all problems of `_trees_of`."""
        self._trees_of: tuple[str, str | None] = "", None
        """The last used commit, and its tree of all problems."""
        self._problems: dict[tuple[str, str], Problem | FormatError] = {}

    def problem_tree(self, commit: str, key: str) -> str | None:
        """Return the tree id of a problem's directory at a commit; it changes with each change of the problem.

        Args:
            commit: a commit of the coordination branch.
            key: the problem's key, `suite/name`.
        """
        if commit != self._trees_of[0]:
            all_problems = self._repo.tree_of(commit, PROBLEMS)
            if all_problems != self._trees_of[1]:
                self._trees.clear()
            self._trees_of = commit, all_problems
        if key not in self._trees:
            self._trees[key] = self._repo.tree_of(commit, problem_path(key))
        return self._trees[key]

    def problem(self, commit: str, key: str) -> Problem:
        """Return a problem of a commit of the coordination branch, read and checked.

        Args:
            key: the problem's key, `suite/name`.

        Raises:
            HarnessError: there is no such problem, or it is malformed; the message has the place.
        """
        tree = self.problem_tree(commit, key)
        if tree is None:
            raise RepositoryError(
                f"there is no problem {key} on the coordination branch",
                where=problem_path(key),
                remedy="commit it there: only committed problems are judged",
            )
        problem = self._problems.get((key, tree))
        if problem is None or (isinstance(problem, Problem) and not problem.directory.is_dir()):
            problem = self._problems[key, tree] = self._load(commit, key, tree)
        if isinstance(problem, FormatError):
            raise problem
        return problem

    def candidate(self, commit: str, key: str, target: str, tree: str) -> Path:
        """Return the directory of a candidate's files.

        Args:
            key: the problem's key, `suite/name`.
            tree: git tree id of the solution directory.

        Raises:
            RepositoryError: the tree cannot be judged (a submodule, a link that leads out of it).
        """
        return self._repo.export(commit, solution_path(key, target), self._candidates_dir / tree)

    def _load(self, commit: str, key: str, tree: str) -> Problem | FormatError:
        incoming = self._problems_dir / f"incoming-{tree}"
        shutil.rmtree(incoming, ignore_errors=True)  # a killed daemon may have left a part
        try:
            self._repo.export(commit, problem_path(key), incoming)
            shutil.rmtree(incoming / SOLUTIONS, ignore_errors=True)  # the judge must not read other candidates
            digest = problem_digest(incoming)
            directory = self._problems_dir / digest.removeprefix("sha256:")
            failpoint("daemon.before_problem_kept")
            if not (directory.is_dir() and problem_digest(directory) == digest):
                shutil.rmtree(directory, ignore_errors=True)
                incoming.rename(directory)
            failpoint("daemon.after_problem_kept")
            return load_problem(directory, key=key, data_root=self._data_root)
        except FormatError as error:
            return error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
