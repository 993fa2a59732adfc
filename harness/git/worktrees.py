"""The workers' worktrees, made, completed and removed so that a kill at any point loses nothing.

A worktree is a few small files in git's documented layout (gitrepository-layout(5)). Each file is written atomically,
by steps that check which files exist: one function makes, completes and repairs a worktree. `git worktree add` cannot
do that: it refuses a directory with files in it and chooses its own names, so that a killed call cannot be continued. A
file that exists in a worktree is never overwritten.
"""

from __future__ import annotations

import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness.errors import RepositoryError
from harness.failpoints import failpoint
from harness.git.branch_commits import resolve
from harness.git.environment import Git, scratch_index
from harness.git.private_index import add_all, changes, drop_stale_lock, install_index, new_index, restore_missing
from harness.git.repo import Repo
from harness.git.worktree_places import (
    BEING_MADE,
    LOCK_S,
    Place,
    Worktree,
    admin_dir_on_branch,
    is_being_made,
    is_linked,
    locate,
    locked,
)
from harness.workspace.directories import Workspace

SAVED = "refs/harness/saved/"
_REMOVED = ".gone."


def add(repo: Repo, place: Place, branch: str, base: str) -> Path:
    """Return the worktree of a worker on a problem, and create or repair it if necessary.

    A complete worktree is not changed; a broken or half-made one is completed. No file in it is ever overwritten.

    Args:
        branch: the branch's short name; it is created if it is missing.
        base: the commit at which a missing branch is created.

    Raises:
        RepositoryError: something that is not the harness' uses the path or the branch.
    """
    workspace, git = repo.workspace, repo.git
    tree = locate(workspace, place)
    with locked(workspace, place, "making a worktree"):
        refuse_foreign(tree)
        other_admin = admin_dir_on_branch(workspace, branch, besides=tree.admin)
        if other_admin is not None:
            raise RepositoryError(
                f"{branch} is checked out elsewhere, by {other_admin}",
                remedy="switch that checkout to another branch: this branch belongs to a worker of the harness",
            )
        if tree.branch() not in {None, branch}:
            _discard(git, tree)  # of another run: its uncommitted files are saved first
        if resolve(git, f"refs/heads/{branch}") is None:
            _remove_empty_refs(workspace, branch)
            git.run("update-ref", "--create-reflog", f"refs/heads/{branch}", base, "0" * len(base))
            failpoint("worktree.branch_made")
        if not _healthy(tree, branch):
            _complete(workspace, git, tree, branch)
    return tree.path


def retire(repo: Repo, place: Place) -> bool:
    """Remove a worktree if its branch holds all of its work; the branch stays, and `add` creates the worktree again.

    Returns:
        False if it holds unsaved work, or if git has lost its branch: then nothing is removed.

    Raises:
        RepositoryError: something that is not the harness' is at its path.
    """
    tree = locate(repo.workspace, place)
    with locked(repo.workspace, place, "removing an idle worktree"):
        refuse_foreign(tree)
        tip = tip_of(repo.git, tree)
        if tip is None or _has_unsaved_work(tree, tip):
            return False
        _discard(repo.git, tree)
    return True


def tip_of(git: Git, tree: Worktree) -> str | None:
    """Return the commit of a worktree's branch; None if git has no record of it.

    Args:
        tree: the worktree.
    """
    branch = tree.branch()
    return resolve(git, f"refs/heads/{branch}") if branch else None


def _has_unsaved_work(tree: Worktree, tip: str | None) -> bool:
    """Return whether files differ from the branch; any file does if git has no record of the branch."""
    if not tree.path.is_dir():
        return False
    if tip is None:
        return any(not file.is_dir() and file != tree.path / ".git" for file in tree.path.rglob("*"))
    with new_index(tree, tip) as private:
        if is_being_made(tree):
            restore_missing(private)  # a file that was never written is not one that a person deleted
        return bool(changes(private))


def _discard(git: Git, tree: Worktree) -> None:
    """Remove a worktree, after a save of its uncommitted files under a ref."""
    tip = tip_of(git, tree)
    if _has_unsaved_work(tree, tip):
        _save(git, tree, tip)
        failpoint("worktree.saved")
    if tree.path.exists():
        moved = tree.path.with_name(f"{_REMOVED}{tree.path.name}")
        shutil.rmtree(moved, ignore_errors=True)
        tree.path.rename(moved)  # atomically: a half-deleted worktree would look like one with deleted files
        failpoint("worktree.moved_away")
        shutil.rmtree(moved, ignore_errors=True)
    shutil.rmtree(tree.admin, ignore_errors=True)
    for parent in (tree.path.parent, tree.path.parent.parent):
        with suppress(OSError):  # it holds other worktrees
            parent.rmdir()


def _save(git: Git, tree: Worktree, tip: str | None) -> None:
    """Commit the files of a worktree to refs/harness/saved/<worker>/<suite>/<name>/<commit>."""
    worktree_git = replace(git, work_tree=tree.path)
    with new_index(tree, tip) if tip else scratch_index(worktree_git, tree.admin) as private:
        add_all(private, ".")
        tree_id = private.run("write-tree").text
    parent = ("-p", tip) if tip else ()
    text = f"Unsaved work of {tree.place.worker} on {tree.place.problem}\n"
    commit = git.run("commit-tree", tree_id, *parent, stdin=text.encode()).text
    git.run("update-ref", f"{SAVED}{tree.place.worker}/{tree.place.problem}/{commit[:12]}", commit)


def _remove_empty_refs(workspace: Workspace, branch: str) -> None:
    """Remove empty directories at the path of a branch's future ref file."""
    path = workspace.git_common_dir / "refs" / "heads" / branch
    if path.is_dir() and not any(file.is_file() for file in path.rglob("*")):
        shutil.rmtree(path, ignore_errors=True)


def refuse_foreign(tree: Worktree) -> None:
    """Refuse a path that holds something that the harness did not make.

    Raises:
        RepositoryError: a link, a file or another repository is at the worktree's path.
    """
    dot = tree.path / ".git"
    foreign = tree.path.is_symlink() or (tree.path.exists() and not tree.path.is_dir())
    foreign = foreign or dot.is_symlink() or dot.is_dir()
    if not foreign and dot.is_file():
        target = Path(dot.read_text(errors="replace").strip().removeprefix("gitdir: "))
        # A pointer to a missing directory results from moving the whole workspace: it is written again.
        foreign = target != tree.admin and (tree.path / target).exists()
    if foreign:
        raise RepositoryError(
            "this path holds something that is not a worktree of the harness",
            where=str(tree.path),
            remedy="move it away",
        )


def _healthy(tree: Worktree, branch: str) -> bool:
    if is_being_made(tree) or tree.branch() != branch or not is_linked(tree) or not tree.index.is_file():
        return False
    if not (tree.admin / "info" / "sparse-checkout").is_file() or not (tree.admin / "config.worktree").is_file():
        return False
    return not drop_stale_lock(tree) and tree.git.ask("ls-files", "--stage", "--", tree.place.path).code == 0


def _complete(workspace: Workspace, git: Git, tree: Worktree, branch: str) -> None:
    """Write the missing files of a worktree. After a kill at any point, the next call completes it."""
    # Missing files of an unfinished worktree are written; in a finished one, a person deleted them.
    restore = is_being_made(tree) or not tree.admin.is_dir() or not tree.path.is_dir()
    _mark(workspace, tree)
    failpoint("worktree.marked")
    _write(tree.admin / "HEAD", f"ref: refs/heads/{branch}\n")
    _write(tree.admin / "commondir", "../..\n")
    _write(tree.admin / "gitdir", f"{tree.path}/.git\n")
    failpoint("worktree.registered")
    _write(tree.admin / "info" / "sparse-checkout", f"/{tree.place.path}/\n")
    _write(tree.admin / "config.worktree", "[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = false\n")
    if git.ask("config", "--type=bool", "--get", "extensions.worktreeConfig").text != "true":
        _set_config(git, "extensions.worktreeConfig", "true")
    failpoint("worktree.sparse_set")
    tree.path.mkdir(parents=True, exist_ok=True)
    failpoint("worktree.directory_made")
    _write(tree.path / ".git", f"gitdir: {tree.admin}\n")
    failpoint("worktree.linked")
    with new_index(tree, f"refs/heads/{branch}") as private:
        if restore:
            restore_missing(private)
        failpoint("worktree.files_written")
        private.ask("update-index", "-q", "--really-refresh")  # a non-zero status only means that some files differ
        if not install_index(tree, private):
            raise RepositoryError(
                "its index is locked by another git command",
                where=str(tree.path),
                remedy="try again when that command has ended",
            )
    failpoint("worktree.index_written")
    (tree.admin / "locked").unlink()


def _mark(workspace: Workspace, tree: Worktree) -> None:
    """Mark a worktree as being made, which also keeps `git worktree prune` away from it."""
    if not tree.admin.is_dir():
        # The directory appears together with the mark: an empty one could be pruned before the mark is written.
        fresh = workspace.state / "git" / f"new.{secrets.token_hex(6)}"
        _write(fresh / "locked", BEING_MADE)
        tree.admin.parent.mkdir(exist_ok=True)
        fresh.rename(tree.admin)
    _write(tree.admin / "locked", BEING_MADE)


def _write(path: Path, text: str) -> None:
    """Write a file atomically, without fsync: every such file is derived again if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    temporary.write_text(text)
    temporary.replace(path)


def _set_config(git: Git, key: str, value: str) -> None:
    deadline = time.monotonic() + LOCK_S
    while (answer := git.ask("config", key, value)).code:  # another command may hold the configuration's lock
        if time.monotonic() > deadline:
            raise RepositoryError(f"git config {key}: {answer.stderr.strip()}", where=str(git.git_dir))
        time.sleep(0.01)
