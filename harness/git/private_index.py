"""A private index of a worktree: git's commands work on it while the worktree's own index stays as it is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness.git.checkout import locked_index
from harness.git.environment import Git, scratch_index
from harness.git.worktree_places import Worktree

_STALE_LOCK_S = 60.0
_CACHES = (":(exclude,glob)**/__pycache__/**", ":(exclude,glob)**/.pytest_cache/**")


@contextmanager
def new_index(tree: Worktree, commit: str) -> Iterator[Git]:
    """Provide a private index of `commit`, in which only the problem's files are checked out, within a `with` block.

    Args:
        tree: the worktree.
        commit: a commit id or ref.

    Yields:
        Git on the worktree with the private index.
    """
    with scratch_index(tree.git, tree.admin) as private:
        private.run("read-tree", commit)
        names = private.run("ls-files", "-z").stdout.split(b"\0")
        inside = f"{tree.place.path}/".encode()
        outside = b"".join(name + b"\0" for name in names if name and not name.startswith(inside))
        private.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=outside)
        yield private


def install_index(tree: Worktree, private: Git) -> bool:
    """Make a private index the worktree's index; return False if another git command keeps the index locked.

    Args:
        tree: the worktree.
        private: git with the private index.
    """
    drop_stale_lock(tree)
    with locked_index(tree.index) as is_locked:
        if is_locked and private.index_file is not None:
            private.index_file.replace(tree.index)
    return is_locked


def drop_stale_lock(tree: Worktree) -> bool:
    """Remove a lock that a killed git command left; return whether there was one."""
    lock = tree.index.with_name("index.lock")
    try:
        stale = time.time() - lock.stat().st_mtime > _STALE_LOCK_S
    except FileNotFoundError:
        return False
    if stale:  # only the harness works here, and its own git commands use private indexes
        lock.unlink(missing_ok=True)
    return stale


def restore_missing(private: Git) -> None:
    """Write the files of a private index that do not exist in its worktree."""
    root = private.work_tree
    rows = (row.split(" ", 1) for row in private.run("ls-files", "-z", "-t").text.split("\0") if row)
    missing = [name for tag, name in rows if tag != "S" and root is not None and not os.path.lexists(root / name)]
    names = "".join(f"{name}\0" for name in missing).encode(errors="surrogateescape")
    private.run("checkout-index", "-q", "-u", "-z", "--stdin", stdin=names)


def changes(private: Git) -> list[str]:
    """Return the paths that differ between a private index' commit and the files, without Python's caches."""
    options = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignored=no")
    rows = private.run("status", *options, "--", ".", *_CACHES).text.split("\0")
    return sorted(row[3:] for row in rows if row)


def add_all(private: Git, path: str) -> None:
    """Add every file below `path` to a private index, and remove files that no longer exist.

    Args:
        private: git with the private index and its worktree.
        path: relative to the worktree's root; "." is the root.
    """
    # Git omits a directory without tracked files unless the exclusions begin with its path too.
    caches = _CACHES if path == "." else [pattern.replace("**/", f"{path}/**/", 1) for pattern in _CACHES]
    # With sparse checkout off for this command, paths outside the pattern can be added; the marks still hold.
    private.run("-c", "core.sparseCheckout=false", "add", "--all", "--", path, *caches)
