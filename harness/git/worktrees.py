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
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RepositoryError
from harness.failpoints import failpoint
from harness.git.branch_commits import resolve
from harness.git.checkout import locked_index
from harness.git.environment import Git
from harness.model.paths import NAME_FORM, is_problem, is_worker, parse_worktree_path, problem_path
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock

SAVED = "refs/harness/saved/"
_LOCK_S = 60.0
_STALE_LOCK_S = 60.0
_BEING_MADE = "kernel-harness: being made\n"
_OURS = "harness+"
_REMOVED = ".gone."
_LISTED = 8
_CACHES = (":(exclude,glob)**/__pycache__/**", ":(exclude,glob)**/.pytest_cache/**")


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
class WorktreeInfo:
    """The state of one worktree on disk."""

    worker: str
    problem: str
    path: Path
    branch: str | None
    complete: bool
    """False for a half-made or broken worktree, which `add` completes."""


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
        try:
            head = (self.admin / "HEAD").read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None


def locate(workspace: Workspace, place: Place) -> Worktree:
    """Return a worktree's two directories, which need not exist.

    Args:
        workspace: the workspace of the worktree.
        place: the worker and the problem.
    """
    admin = workspace.git_common_dir / "worktrees" / place.id
    return Worktree(place, admin, workspace.worktree(place.worker, place.problem))


def locked(workspace: Workspace, place: Place, operation: str) -> AbstractContextManager[None]:
    """Hold a worktree's lock against every other process of the harness.

    Args:
        workspace: the workspace of the worktree.
        place: the worker and the problem.
        operation: the reason that a waiting process reports.
    """
    return file_lock(workspace.state / "git" / f"{place.id}.lock", wait_s=_LOCK_S, owner=operation)


def git_dir_of(root: Path) -> Path:
    """Return git's directory of a checkout: the repository's own, or a linked worktree's administrative one."""
    dot = root / ".git"
    if dot.is_dir():
        return dot
    try:
        return (root / dot.read_text().strip().removeprefix("gitdir: ")).resolve()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RepositoryError("not a git checkout: there is no .git", where=str(root)) from error


def admin_dir_on_branch(workspace: Workspace, branch: str, *, besides: Path | None = None) -> Path | None:
    """Return the administrative directory of the checkout that has a branch checked out, or None.

    Args:
        workspace: the workspace of the repository.
        branch: the branch's short name.
        besides: an administrative directory that does not count.
    """
    common = workspace.git_common_dir
    for admin in (common, *sorted((common / "worktrees").glob("*"))):
        try:
            head = (admin / "HEAD").read_text()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if admin != besides and head.strip() == f"ref: refs/heads/{branch}":
            return admin
    return None


def count_unmerged(git: Git, branch: str) -> int:
    """Return the number of commits of a branch that no other branch holds.

    Args:
        git: the repository.
        branch: the branch's short name.
    """
    other_branches = (f"--exclude={branch}", "--branches", "--remotes")
    return int(git.run("rev-list", "--count", f"refs/heads/{branch}", "--not", *other_branches).text)


def listing(workspace: Workspace) -> list[WorktreeInfo]:
    """Return every worktree of the harness: those that git has a record of, and directories without a record."""
    admins = sorted((workspace.git_common_dir / "worktrees").glob(f"{_OURS}*"))
    places = {(parts[1], f"{parts[2]}/{parts[3]}") for admin in admins if len(parts := admin.name.split("+")) == 4}
    for directory in workspace.worktrees.glob("*/*/*"):
        place = parse_worktree_path(directory.relative_to(workspace.root).as_posix())
        if directory.is_dir() and place and is_worker(place[0]) and is_problem(place[1]):
            places.add(place)
    infos = []
    for worker, problem in sorted(places):
        tree = locate(workspace, Place(worker, problem))
        branch = tree.branch()
        complete = branch is not None and not _being_made(tree) and _linked(tree)
        infos.append(WorktreeInfo(worker, problem, tree.path, branch, complete))
    return infos


def add(workspace: Workspace, git: Git, place: Place, branch: str, base: str) -> Path:
    """Make, complete or repair a worktree; see `Repo.add_worktree`.

    Args:
        workspace: the workspace of the worktree.
        git: the workspace's repository.
        place: the worker and the problem.
        branch: the branch's short name; it is created if it is missing.
        base: the commit at which a missing branch is created.

    Returns:
        The worktree's directory.
    """
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


def remove(workspace: Workspace, git: Git, place: Place, *, force: bool) -> None:
    """Remove a worktree; see `Repo.remove_worktree`.

    Args:
        workspace: the workspace of the worktree.
        git: the workspace's repository.
        place: the worker and the problem.
        force: remove it also with unsaved or unmerged work.
    """
    tree = locate(workspace, place)
    with locked(workspace, place, "removing a worktree"):
        refuse_foreign(tree)
        branch, tip = _branch_and_tip(git, tree)
        if not force:
            unsaved = _unsaved(tree, tip)
            unmerged_count = count_unmerged(git, branch) if branch and tip else 0
            losses = [f"unsaved: {', '.join(unsaved[:_LISTED])}"] if unsaved else []
            losses += (
                [f"{unmerged_count} commits of {branch} that no other branch has merged"] if unmerged_count else []
            )
            if losses:
                raise RepositoryError(
                    f"work would be lost: {'; '.join(losses)}",
                    where=str(tree.path),
                    remedy="submit or merge it, or force it: the branch stays, and unsaved work is saved under a ref",
                )
        _discard(git, tree)


def retire(workspace: Workspace, git: Git, place: Place) -> bool:
    """Remove a worktree whose work is all on its branch; see `Repo.retire_worktree`.

    Args:
        workspace: the workspace of the worktree.
        git: the workspace's repository.
        place: the worker and the problem.

    Returns:
        False if it holds unsaved work, or if git has lost its branch.
    """
    tree = locate(workspace, place)
    with locked(workspace, place, "removing an idle worktree"):
        refuse_foreign(tree)
        _, tip = _branch_and_tip(git, tree)
        if tip is None or _unsaved(tree, tip):
            return False
        _discard(git, tree)
    return True


def _branch_and_tip(git: Git, tree: Worktree) -> tuple[str | None, str | None]:
    """Return a worktree's branch and its tip; None if git has no record of them."""
    branch = tree.branch()
    return branch, resolve(git, f"refs/heads/{branch}") if branch else None


def _unsaved(tree: Worktree, tip: str | None) -> list[str]:
    """Return the files that differ from the branch; all files if git has no record of the branch."""
    if not tree.path.is_dir():
        return []
    if tip is None:
        files = (file for file in tree.path.rglob("*") if not file.is_dir())
        return sorted(str(file.relative_to(tree.path)) for file in files if file != tree.path / ".git")
    private = new_index(tree, tip)
    try:
        if _being_made(tree):
            _restore_missing(private)  # a file that was never written is not one that a person deleted
        return changes(private)
    finally:
        drop_index(private)


def _discard(git: Git, tree: Worktree) -> None:
    """Remove a worktree, after a save of its uncommitted files under a ref."""
    _, tip = _branch_and_tip(git, tree)
    if _unsaved(tree, tip):
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
    if tip is None:
        empty_index = tree.path.with_name(f"{_REMOVED}{tree.path.name}.index")
        private = git.using(work_tree=tree.path, index_file=empty_index)
    else:
        private = new_index(tree, tip)
    try:
        add_all(private, ".")
        tree_id = private.run("write-tree").text
    finally:
        drop_index(private)
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


def _being_made(tree: Worktree) -> bool:
    try:
        return (tree.admin / "locked").read_text() == _BEING_MADE
    except (FileNotFoundError, NotADirectoryError):
        return False


def _linked(tree: Worktree) -> bool:
    """Return whether the two directories point at each other."""
    try:
        forth, back = (tree.path / ".git").read_text(), (tree.admin / "gitdir").read_text()
        common = (tree.admin / "commondir").read_text()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (forth, back, common) == (f"gitdir: {tree.admin}\n", f"{tree.path}/.git\n", "../..\n")


def _healthy(tree: Worktree, branch: str) -> bool:
    if _being_made(tree) or tree.branch() != branch or not _linked(tree) or not tree.index.is_file():
        return False
    if not (tree.admin / "info" / "sparse-checkout").is_file() or not (tree.admin / "config.worktree").is_file():
        return False
    return not _drop_stale_lock(tree) and tree.git.ask("ls-files", "--stage", "--", tree.place.path).code == 0


def _complete(workspace: Workspace, git: Git, tree: Worktree, branch: str) -> None:
    """Write the missing files of a worktree. After a kill at any point, the next call completes it."""
    # Missing files of an unfinished worktree are written; in a finished one, a person deleted them.
    restore = _being_made(tree) or not tree.admin.is_dir() or not tree.path.is_dir()
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
    private = new_index(tree, f"refs/heads/{branch}")
    try:
        if restore:
            _restore_missing(private)
        failpoint("worktree.files_written")
        private.ask("update-index", "-q", "--really-refresh")  # a non-zero status only means that some files differ
        if not install_index(tree, private):
            raise RepositoryError(
                "its index is locked by another git command",
                where=str(tree.path),
                remedy="try again when that command has ended",
            )
    finally:
        drop_index(private)
    failpoint("worktree.index_written")
    (tree.admin / "locked").unlink()


def _mark(workspace: Workspace, tree: Worktree) -> None:
    """Mark a worktree as being made, which also keeps `git worktree prune` away from it."""
    if not tree.admin.is_dir():
        # The directory appears together with the mark: an empty one could be pruned before the mark is written.
        fresh = workspace.state / "git" / f"new.{secrets.token_hex(6)}"
        _write(fresh / "locked", _BEING_MADE)
        tree.admin.parent.mkdir(exist_ok=True)
        fresh.rename(tree.admin)
    _write(tree.admin / "locked", _BEING_MADE)


def _write(path: Path, text: str) -> None:
    """Write a file atomically, without fsync: every such file is derived again if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    temporary.write_text(text)
    temporary.replace(path)


def _set_config(git: Git, key: str, value: str) -> None:
    deadline = time.monotonic() + _LOCK_S
    while (answer := git.ask("config", key, value)).code:  # another command may hold the configuration's lock
        if time.monotonic() > deadline:
            raise RepositoryError(f"git config {key}: {answer.stderr.strip()}", where=str(git.git_dir))
        time.sleep(0.01)


def new_index(tree: Worktree, commit: str) -> Git:
    """Return git on the worktree with a private index of `commit`, in which only the problem's files are checked out.

    Args:
        tree: the worktree.
        commit: a commit id or ref.
    """
    private = tree.git.using(index_file=tree.admin / f"index.{secrets.token_hex(6)}.new")
    try:
        private.run("read-tree", commit)
        names = private.run("ls-files", "-z").stdout.split(b"\0")
        inside = f"{tree.place.path}/".encode()
        outside = b"".join(name + b"\0" for name in names if name and not name.startswith(inside))
        private.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=outside)
    except BaseException:
        drop_index(private)
        raise
    return private


def drop_index(private: Git) -> None:
    """Remove a private index."""
    if private.index_file is not None:
        private.index_file.unlink(missing_ok=True)


def install_index(tree: Worktree, private: Git) -> bool:
    """Make a private index the worktree's index; return False if another git command keeps the index locked.

    Args:
        tree: the worktree.
        private: git with the private index.
    """
    _drop_stale_lock(tree)
    with locked_index(tree.index) as is_locked:
        if is_locked and private.index_file is not None:
            private.index_file.replace(tree.index)
    return is_locked


def _drop_stale_lock(tree: Worktree) -> bool:
    """Remove a lock that a killed git command left; return whether there was one."""
    lock = tree.index.with_name("index.lock")
    try:
        stale = time.time() - lock.stat().st_mtime > _STALE_LOCK_S
    except FileNotFoundError:
        return False
    if stale:  # only the harness works here, and its own git commands use private indexes
        lock.unlink(missing_ok=True)
    return stale


def _restore_missing(private: Git) -> None:
    root = private.work_tree
    rows = (row.split(" ", 1) for row in private.run("ls-files", "-z", "-t").text.split("\0") if row)
    missing = [name for tag, name in rows if tag != "S" and root is not None and not _exists(root / name)]
    names = "".join(f"{name}\0" for name in missing).encode(errors="surrogateescape")
    private.run("checkout-index", "-q", "-u", "-z", "--stdin", stdin=names)


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


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
