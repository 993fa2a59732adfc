"""Locations of the workers' worktrees: git's administrative directory, the files, and the branch of each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RepositoryError
from harness.git.environment import Git, checked_out_branch, text_of
from harness.model.paths import NAME_FORM, is_problem, is_worker, problem_path
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock

LOCK_S = 60.0
BEING_MADE = "kernel-harness: being made\n"
"""Content of git's `locked` file of a worktree until it is complete."""


@dataclass(frozen=True)
class Place:
    """A worker and the problem of its worktree."""

    worker: str
    problem: str

    def __post_init__(self) -> None:
        if not (is_worker(self.worker) and is_problem(self.problem)):
            raise RepositoryError(
                f"worker {self.worker!r} on problem {self.problem!r}: names are of {NAME_FORM} "
                "(a worker's has no dot), and a problem is suite/name"
            )

    @property
    def id(self) -> str:
        """Name of git's administrative directory; `+` cannot be in the parts, so the name is unique."""
        return "+".join(("harness", self.worker, *self.problem.split("/")))

    @property
    def path(self) -> str:
        """The problem's directory in the repository, the only one that is checked out."""
        return problem_path(self.problem)


@dataclass(frozen=True)
class Worktree:
    """A worktree's two directories: git's administrative directory and the files."""

    place: Place
    admin: Path
    path: Path

    @property
    def index(self) -> Path:
        """The worktree's index."""
        return self.admin / "index"

    @property
    def git(self) -> Git:
        """Git on this worktree only, independent of its `.git` file."""
        return Git(self.admin, self.path)

    def branch(self) -> str | None:
        """Return the branch that is checked out; None if git has no record of it."""
        return checked_out_branch(self.admin)


def locate(workspace: Workspace, place: Place) -> Worktree:
    """Return a worktree's two directories, which need not exist."""
    admin = workspace.git_common_dir / "worktrees" / place.id
    return Worktree(place, admin, workspace.worktree(place.worker, place.problem))


def locked(workspace: Workspace, place: Place, operation: str) -> AbstractContextManager[None]:
    """Hold a worktree's lock against every other process of the harness.

    Args:
        operation: the reason that a waiting process reports.
    """
    return file_lock(workspace.state / "git" / f"{place.id}.lock", wait_s=LOCK_S, owner=operation)


def git_dir_of(root: Path) -> Path:
    """Return git's directory of a checkout: the repository's own, or a linked worktree's administrative one."""
    dot = root / ".git"
    if dot.is_dir():
        return dot
    pointer = text_of(dot)
    if pointer is None:
        raise RepositoryError("not a git checkout: there is no .git", where=str(root))
    return (root / pointer.strip().removeprefix("gitdir: ")).resolve()


def admin_dir_on_branch(workspace: Workspace, branch: str, *, besides: Path | None = None) -> Path | None:
    """Return the administrative directory of the checkout that has a branch checked out, or None.

    Args:
        branch: the branch's short name.
        besides: an administrative directory that does not count.
    """
    common = workspace.git_common_dir
    admins = (admin for admin in (common, *sorted((common / "worktrees").glob("*"))) if admin != besides)
    return next((admin for admin in admins if checked_out_branch(admin) == branch), None)


def is_being_made(tree: Worktree) -> bool:
    """Return true if the worktree was begun and is not complete."""
    return text_of(tree.admin / "locked") == BEING_MADE


def is_linked(tree: Worktree) -> bool:
    """Return whether the two directories point at each other."""
    texts = [text_of(path) for path in (tree.path / ".git", tree.admin / "gitdir", tree.admin / "commondir")]
    return texts == [f"gitdir: {tree.admin}\n", f"{tree.path}/.git\n", "../..\n"]
