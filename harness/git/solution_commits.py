"""Commits of a worktree's files: a candidate on its branch, or unsaved work under a ref.

The commits are made by git plumbing. The tree is made in a private index, the branch moves by compare-and-swap, and
only then the worktree's own index follows. A kill at any point leaves the files unchanged, and the branch at the old or
the new commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RepositoryError
from harness.failpoints import failpoint
from harness.git import private_index, worktree_places, worktrees
from harness.git.environment import Git
from harness.git.repo import Repo
from harness.git.worktree_places import Place, Worktree
from harness.model.paths import WORKTREE_FORM, solution_path
from harness.model.printable import first_names, printable
from harness.workspace.directories import Workspace

MAX_SOLUTION_BYTES = 16 << 20
_PLAIN = ("100644", "100755")
_LISTED = 8
_WRITE_SOLUTION = "write solution.yaml and its sources there"


def whole_message(text: str, trailers: Mapping[str, str]) -> str:
    """Return a commit's whole message, printable.

    A line break in a trailer would forge another trailer: it becomes a space.

    Args:
        text: the message without trailers.
        trailers: key -> value.
    """
    text = printable(text.replace("\0", ""), keep_newlines=True).strip() or "Submit a solution"
    lines = [printable(f"{name}: {' '.join(str(value).split())}") for name, value in trailers.items()]
    return "\n\n".join(part for part in (text, "\n".join(lines)) if part) + "\n"


@dataclass(frozen=True)
class Submission:
    """The result of committing a solution."""

    commit: str
    tree: str
    """Tree id of the solution directory: with the problem it identifies the candidate."""
    branch: str
    unchanged: bool = False
    """The branch already held this tree; `commit` is its tip."""


class StrayFilesError(RepositoryError):
    """Files of a worktree outside its solution were changed, so that its solution cannot be committed."""


def commit_solution(
    repo: Repo,
    worktree: Path,
    problem: str,
    target: str,
    message: str,
    trailers: Mapping[str, str],
    *,
    even_if_unchanged: bool = False,
) -> Submission:
    """Commit problems/<problem>/solutions/<target>/ of a worktree on the worktree's own branch.

    Args:
        message: the commit message without trailers.
        trailers: key -> value, added at the end of the message.
        even_if_unchanged: make a commit also if the branch already holds the same solution.

    Raises:
        StrayFilesError: another file of the worktree changed; the message lists it.
        RepositoryError: the solution is empty, too large or not of plain files, or the directory is not a worktree of
            the harness.
    """
    git = repo.git
    tree = _checked_worktree(repo.workspace, worktree, problem)
    solution, text = solution_path(problem, target), whole_message(message, trailers)
    with worktree_places.locked(repo.workspace, tree.place, "committing a solution"):
        branch = tree.branch()
        tip = worktrees.tip_of(git, tree)
        if branch is None or tip is None:
            raise RepositoryError("this worktree is on no branch", where=str(worktree), remedy="start its worker again")
        with private_index.new_index(tree, tip) as private:
            strays = _changes_outside(private, solution)
            if strays:
                raise StrayFilesError(
                    f"files outside {solution}/ changed: {first_names(strays, _LISTED)}",
                    where=str(tree.path),
                    remedy="move new files into the solution and restore the other files",
                )
            root_tree, solution_tree = _tree_with(private, solution)
            before = git.ask("rev-parse", "--verify", "--quiet", f"{tip}:{solution}").text
            if solution_tree == before and not even_if_unchanged:
                private_index.install_index(tree, private)  # after a kill between ref and index, the index is older
                return Submission(tip, solution_tree, branch, unchanged=True)
            failpoint("worktree.tree_written")
            commit = git.run("commit-tree", root_tree, "-p", tip, stdin=text.encode(errors="replace")).text
            failpoint("worktree.commit_written")
            answer = git.ask("update-ref", "-m", "submit", f"refs/heads/{branch}", commit, tip)
            if answer.code:
                raise RepositoryError(
                    f"{branch} moved during the submission: {answer.stderr.strip()}", remedy="submit again"
                )
            failpoint("worktree.branch_moved")
            private_index.install_index(tree, private)  # if it is locked, the next submission updates it
            failpoint("worktree.index_followed")
    return Submission(commit, solution_tree, branch, unchanged=solution_tree == before)


def _checked_worktree(workspace: Workspace, worktree: Path, problem: str) -> Worktree:
    try:
        worker, suite, name = worktree.resolve().relative_to(workspace.worktrees.resolve()).parts
    except ValueError as error:
        raise RepositoryError(
            "not a worktree of the harness", where=str(worktree), remedy=f"submit from {WORKTREE_FORM}"
        ) from error
    tree = worktree_places.locate(workspace, Place(worker, f"{suite}/{name}"))
    if f"{suite}/{name}" != problem:
        raise RepositoryError(f"this is the worktree of {suite}/{name}, not of {problem}", where=str(worktree))
    if not tree.admin.is_dir():
        raise RepositoryError(
            "git has no record of this worktree", where=str(worktree), remedy="start its worker again"
        )
    worktrees.refuse_foreign(tree)
    return tree


def has_strays(repo: Repo, place: Place, target: str) -> bool:
    """Return whether files of a worktree outside its solution were changed; false if the worktree is missing.

    Args:
        place: the worker and the problem of the worktree.
    """
    tree = worktree_places.locate(repo.workspace, place)
    tip = worktrees.tip_of(repo.git, tree)
    if tip is None or not tree.path.is_dir():
        return False
    with private_index.new_index(tree, tip) as private:
        return bool(_changes_outside(private, solution_path(place.problem, target)))


def _changes_outside(private: Git, solution: str) -> list[str]:
    return [path for path in private_index.changes(private) if not path.startswith(f"{solution}/")]


def _tree_with(private: Git, solution: str) -> tuple[str, str]:
    """Return the ids of the whole tree with the worktree's solution, and of the solution's own tree."""
    root = private.work_tree
    if root is None or not (root / solution).is_dir() or (root / solution).is_symlink():
        raise RepositoryError("there is no solution", where=solution, remedy=_WRITE_SOLUTION)
    private_index.add_all(private, solution)
    listing = private.run("ls-files", "--stage", "-z", "--", solution).text
    rows = [row.split("\t", 1) for row in listing.split("\0") if row]
    if not rows:
        raise RepositoryError("the solution is empty", where=solution, remedy=_WRITE_SOLUTION)
    unfit = [name for facts, name in rows if facts.split()[0] not in _PLAIN]
    if unfit:
        raise RepositoryError(f"{unfit[0]} is no plain file: links and repositories cannot be judged", where=solution)
    size = sum((root / name).stat().st_size for _, name in rows)
    if size > MAX_SOLUTION_BYTES:
        raise RepositoryError(
            f"the solution has {size / 1e6:.1f} MB; expected at most {MAX_SOLUTION_BYTES / 1e6:.0f} MB", where=solution
        )
    root_tree = private.run("write-tree").text
    return root_tree, private.run("rev-parse", f"{root_tree}:{solution}").text
