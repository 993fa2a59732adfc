"""What is judged, as files: problems and candidates taken from git objects, never from a working directory."""

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
    """Problems and candidates in the cache, by content. One thread.

    Args:
        data_root: where a problem's safetensors paths may lead besides its directory.
    """

    def __init__(self, workspace: Workspace, repo: Repo, data_root: Path | None = None) -> None:
        self._repo = repo
        self._data_root = data_root
        self._problems_dir = workspace.cache / PROBLEMS
        self._candidates_dir = workspace.cache / "candidates"
        self._trees: dict[str, str | None] = {}
        """Problem -> the tree id of its directory, in the state of all problems that `_trees_of` names."""
        self._trees_of: tuple[str, str | None] = "", None
        """The commit that was looked at last, and its tree of all problems."""
        self._problems: dict[tuple[str, str], Problem | FormatError] = {}

    def problem_tree(self, commit: str, key: str) -> str | None:
        """The tree id of a problem's directory at a commit: cheap, and the same as long as nothing of it changed."""
        if commit != self._trees_of[0]:
            all_problems = self._repo.tree_of(commit, PROBLEMS)
            if all_problems != self._trees_of[1]:
                self._trees.clear()
            self._trees_of = commit, all_problems
        if key not in self._trees:
            self._trees[key] = self._repo.tree_of(commit, problem_path(key))
        return self._trees[key]

    def problem(self, commit: str, key: str) -> Problem:
        """A problem as it stands at a commit of the coordination branch, read and checked.

        Raises:
            HarnessError: there is no such problem, or it is malformed; the message says where.
        """
        tree = self.problem_tree(commit, key)
        if tree is None:
            raise RepositoryError(
                f"there is no problem {key} on the coordination branch",
                where=problem_path(key),
                remedy="commit it there: what is judged is what is committed",
            )
        known = self._problems.get((key, tree))
        if known is None or (isinstance(known, Problem) and not known.directory.is_dir()):
            known = self._load(commit, key, tree)
            self._problems[key, tree] = known
        if isinstance(known, FormatError):
            raise known
        return known

    def candidate(self, commit: str, key: str, target: str, tree: str) -> Path:
        """A candidate's files.

        Raises:
            RepositoryError: the tree holds what cannot be judged (a submodule, a link that leads out of it).
        """
        return self._repo.export(commit, solution_path(key, target), self._candidates_dir / tree)

    def _load(self, commit: str, key: str, tree: str) -> Problem | FormatError:
        incoming = self._problems_dir / f"incoming-{tree}"
        shutil.rmtree(incoming, ignore_errors=True)  # a killed daemon may have left a part of it
        try:
            self._repo.export(commit, problem_path(key), incoming)
            shutil.rmtree(incoming / SOLUTIONS, ignore_errors=True)  # the judge reads nothing of other candidates
            digest = problem_digest(incoming)
            directory = self._problems_dir / digest.removeprefix("sha256:")
            failpoint("daemon.before_problem_kept")
            if not _holds(directory, digest):
                shutil.rmtree(directory, ignore_errors=True)
                incoming.rename(directory)
            failpoint("daemon.after_problem_kept")
            return load_problem(directory, key=key, data_root=self._data_root)
        except FormatError as error:
            return error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)


def _holds(directory: Path, digest: str) -> bool:
    """Whether a snapshot is there and is what its name says."""
    return directory.is_dir() and problem_digest(directory) == digest
