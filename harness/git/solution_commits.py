"""Commits made from a worktree's files: a candidate on its branch, or unsaved work under a ref.

Plumbing only. The tree is made in a private index, the branch is moved by compare-and-swap, and only then does the
worktree's own index follow: killed anywhere, the files are untouched and the branch is either before or after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RepositoryError
from harness.failpoints import failpoint
from harness.git import worktrees
from harness.git.branch_commits import resolve
from harness.git.environment import Git
from harness.git.worktrees import Place, Worktree
from harness.model.paths import WORKTREE_FORM, solution_path
from harness.model.printable import printable
from harness.workspace.directories import Workspace

MAX_SOLUTION_BYTES = 16 << 20
_PLAIN = ("100644", "100755")
_LISTED = 8


@dataclass(frozen=True)
class Message:
    """A commit's text and its trailers."""

    text: str
    trailers: Mapping[str, str]

    def render(self) -> str:
        """The whole printable message. A line break in a trailer would forge another: it becomes a space."""
        text = printable(self.text.replace("\0", ""), keep_newlines=True).strip() or "Submit a solution"
        lines = [printable(f"{name}: {' '.join(str(value).split())}") for name, value in self.trailers.items()]
        return "\n\n".join(part for part in (text, "\n".join(lines)) if part) + "\n"


@dataclass(frozen=True)
class Submission:
    """The result of committing a solution."""

    commit: str
    tree: str
    """Of the solution directory: with the problem it names the candidate."""
    branch: str
    unchanged: bool
    """The branch already held this tree; `commit` is its tip."""


def commit_solution(
    workspace: Workspace,
    git: Git,
    worktree: Path,
    problem: str,
    target: str,
    message: Message,
    *,
    even_if_unchanged: bool = False,
) -> Submission:
    """Commit a worktree's solution on its branch; see `Repo.commit_solution`."""
    tree = _of_the_harness(workspace, worktree, problem)
    solution = solution_path(problem, target)
    with worktrees.locked(workspace, tree.place, "committing a solution"):
        branch = tree.branch()
        tip = resolve(git, f"refs/heads/{branch}") if branch else None
        if branch is None or tip is None:
            raise RepositoryError("this worktree is on no branch", where=str(worktree), remedy="start its worker again")
        private = worktrees.new_index(tree, tip)
        try:
            _refuse_others(private, tree, solution)
            made, solution_tree = _tree_with(private, solution)
            before = git.ask("rev-parse", "--verify", "--quiet", f"{tip}:{solution}").text
            if solution_tree == before and not even_if_unchanged:
                worktrees.install_index(tree, private)  # killed after the branch had moved, the index is still behind
                return Submission(tip, solution_tree, branch, unchanged=True)
            failpoint("worktree.tree_written")
            commit = git.run("commit-tree", made, "-p", tip, stdin=message.render().encode(errors="replace")).text
            failpoint("worktree.commit_written")
            moved = git.ask("update-ref", "-m", "submit", f"refs/heads/{branch}", commit, tip)
            if moved.code:
                raise RepositoryError(f"{branch} moved meanwhile: {moved.stderr.strip()}", remedy="submit again")
            failpoint("worktree.branch_moved")
            worktrees.install_index(tree, private)  # when somebody locks it, the next submission brings it up to date
            failpoint("worktree.index_followed")
        finally:
            worktrees.drop_index(private)
    return Submission(commit, solution_tree, branch, unchanged=solution_tree == before)


def _of_the_harness(workspace: Workspace, worktree: Path, problem: str) -> Worktree:
    try:
        worker, suite, name = worktree.resolve().relative_to(workspace.worktrees.resolve()).parts
    except ValueError as error:
        raise RepositoryError(
            "not a worktree of the harness",
            where=str(worktree),
            remedy=f"submit from {WORKTREE_FORM}",
        ) from error
    tree = worktrees.locate(workspace, Place(worker, f"{suite}/{name}"))
    if f"{suite}/{name}" != problem:
        raise RepositoryError(f"this is the worktree of {suite}/{name}, not of {problem}", where=str(worktree))
    if not tree.admin.is_dir():
        raise RepositoryError("git no longer knows this worktree", where=str(worktree), remedy="start its worker again")
    worktrees.refuse_foreign(tree)
    return tree


def _refuse_others(private: Git, tree: Worktree, solution: str) -> None:
    others = [path for path in worktrees.changes(private) if not path.startswith(f"{solution}/")]
    if others:
        shown = ", ".join(others[:_LISTED]) + (f" and {len(others) - _LISTED} more" if len(others) > _LISTED else "")
        raise RepositoryError(
            f"only {solution}/ may change, and these did too: {shown}",
            where=str(tree.path),
            remedy="move what is new into the solution and put the rest back as it was",
        )


def _tree_with(private: Git, solution: str) -> tuple[str, str]:
    """Return the ids of the whole tree with the worktree's solution, and of the solution's own tree."""
    root = private.work_tree
    if root is None or not (root / solution).is_dir() or (root / solution).is_symlink():
        raise RepositoryError(
            "there is no solution", where=solution, remedy="write solution.yaml and its sources there"
        )
    worktrees.add_all(private, solution)
    rows = [
        row.split("\t", 1) for row in private.run("ls-files", "--stage", "-z", "--", solution).text.split("\0") if row
    ]
    if not rows:
        raise RepositoryError(
            "the solution is empty", where=solution, remedy="write solution.yaml and its sources there"
        )
    odd = [name for facts, name in rows if facts.split()[0] not in _PLAIN]
    if odd:
        raise RepositoryError(f"{odd[0]} is no plain file: links and repositories cannot be judged", where=solution)
    size = sum((root / name).stat().st_size for _, name in rows)
    if size > MAX_SOLUTION_BYTES:
        raise RepositoryError(
            f"the solution has {size / 1e6:.1f} MB; expected at most {MAX_SOLUTION_BYTES / 1e6:.0f} MB", where=solution
        )
    made = private.run("write-tree").text
    return made, private.run("rev-parse", f"{made}:{solution}").text
