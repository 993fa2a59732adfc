"""The workers' worktrees: made, completed and removed so that a kill at any point loses nothing.

A worktree is a handful of small files in git's documented layout (gitrepository-layout(5)). They are written one by
one, each whole, by steps that look at what is there: making one, finishing a half-made one and repairing a broken one
are the same function. `git worktree add` cannot do that: it refuses a directory with files in it and picks names of
its own, so that a killed call cannot be continued. A file that exists in a worktree is never overwritten.
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
_GONE = ".gone."
_LISTED = 8
_CACHES = (":(exclude,glob)**/__pycache__/**", ":(exclude,glob)**/.pytest_cache/**")


@dataclass(frozen=True)
class Place:
    """Whose worktree, on which problem."""

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
        """Name of git's administrative directory; `+` cannot be in the parts, so it is unique."""
        return "+".join(("harness", self.worker, *self.problem.split("/")))

    @property
    def path(self) -> str:
        """The problem's directory in the repository, the only one that is checked out."""
        return problem_path(self.problem)


@dataclass(frozen=True)
class WorktreeInfo:
    """One worktree as it is found on disk."""

    worker: str
    problem: str
    path: Path
    branch: str | None
    complete: bool
    """False: half made or broken; `add` completes it."""


@dataclass(frozen=True)
class Worktree:
    """A worktree's two ends: git's administrative directory and the files."""

    place: Place
    admin: Path
    path: Path

    @property
    def index(self) -> Path:
        """Its index."""
        return self.admin / "index"

    @property
    def git(self) -> Git:
        """Git on this worktree and nothing else, whatever its `.git` file says or lacks."""
        return Git(self.admin, self.path)

    def branch(self) -> str | None:
        """The branch it is on."""
        try:
            head = (self.admin / "HEAD").read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None


def locate(workspace: Workspace, place: Place) -> Worktree:
    """Where a worktree is, or would be."""
    admin = workspace.git_common_dir / "worktrees" / place.id
    return Worktree(place, admin, workspace.worktree(place.worker, place.problem))


def locked(workspace: Workspace, place: Place, what: str) -> AbstractContextManager[None]:
    """Hold a worktree against every other harness."""
    return file_lock(workspace.state / "git" / f"{place.id}.lock", wait_s=_LOCK_S, owner=what)


def git_dir_of(root: Path) -> Path:
    """Git's directory of one checkout: the repository's own, or a linked worktree's administrative one."""
    dot = root / ".git"
    if dot.is_dir():
        return dot
    try:
        return (root / dot.read_text().strip().removeprefix("gitdir: ")).resolve()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RepositoryError("not a git checkout: there is no .git", where=str(root)) from error


def holder(workspace: Workspace, branch: str, *, besides: Path | None = None) -> Path | None:
    """The administrative directory of the checkout that has a branch checked out, if there is one."""
    common = workspace.git_common_dir
    for admin in (common, *sorted((common / "worktrees").glob("*"))):
        try:
            head = (admin / "HEAD").read_text()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if admin != besides and head.strip() == f"ref: refs/heads/{branch}":
            return admin
    return None


def unmerged(git: Git, branch: str) -> int:
    """How many commits of a branch no other branch holds."""
    others = (f"--exclude={branch}", "--branches", "--remotes")
    return int(git.run("rev-list", "--count", f"refs/heads/{branch}", "--not", *others).text)


def listing(workspace: Workspace) -> list[WorktreeInfo]:
    """Every worktree of the harness: those git knows, and directories that git has forgotten."""
    admins = sorted((workspace.git_common_dir / "worktrees").glob(f"{_OURS}*"))
    known = {(parts[1], f"{parts[2]}/{parts[3]}") for admin in admins if len(parts := admin.name.split("+")) == 4}
    for directory in workspace.worktrees.glob("*/*/*"):
        place = parse_worktree_path(directory.relative_to(workspace.root).as_posix())
        if directory.is_dir() and place and is_worker(place[0]) and is_problem(place[1]):
            known.add(place)
    found = []
    for worker, problem in sorted(known):
        tree = locate(workspace, Place(worker, problem))
        branch = tree.branch()
        complete = branch is not None and not _being_made(tree) and _linked(tree)
        found.append(WorktreeInfo(worker, problem, tree.path, branch, complete))
    return found


def add(workspace: Workspace, git: Git, place: Place, branch: str, base: str) -> Path:
    """Make, complete or repair a worktree; see `Repo.add_worktree`."""
    tree = locate(workspace, place)
    with locked(workspace, place, "making a worktree"):
        refuse_foreign(tree)
        taken = holder(workspace, branch, besides=tree.admin)
        if taken is not None:
            raise RepositoryError(
                f"{branch} is checked out elsewhere, by {taken}",
                remedy="switch that checkout to another branch: this one belongs to a worker of the harness",
            )
        if tree.branch() not in {None, branch}:
            _discard(git, tree)  # another run's: what is not committed there is saved first
        if resolve(git, f"refs/heads/{branch}") is None:
            _remove_empty_refs(workspace, branch)
            git.run("update-ref", "--create-reflog", f"refs/heads/{branch}", base, "0" * len(base))
            failpoint("worktree.branch_made")
        if not _healthy(tree, branch):
            _complete(workspace, git, tree, branch)
    return tree.path


def remove(workspace: Workspace, git: Git, place: Place, *, force: bool) -> None:
    """Remove a worktree; see `Repo.remove_worktree`."""
    tree = locate(workspace, place)
    with locked(workspace, place, "removing a worktree"):
        refuse_foreign(tree)
        branch, tip = _known(git, tree)
        if not force:
            unsaved = _unsaved(tree, tip)
            alone = unmerged(git, branch) if branch and tip else 0
            what = [f"unsaved: {', '.join(unsaved[:_LISTED])}"] if unsaved else []
            what += [f"{alone} commits of {branch} that are merged nowhere"] if alone else []
            if what:
                raise RepositoryError(
                    f"work would be lost: {'; '.join(what)}",
                    where=str(tree.path),
                    remedy="submit or merge it, or force it: the branch stays, unsaved work is kept under a ref",
                )
        _discard(git, tree)


def retire(workspace: Workspace, git: Git, place: Place) -> bool:
    """Remove a worktree whose work is all on its branch; see `Repo.retire_worktree`."""
    tree = locate(workspace, place)
    with locked(workspace, place, "removing an idle worktree"):
        refuse_foreign(tree)
        _, tip = _known(git, tree)
        if tip is None or _unsaved(tree, tip):
            return False
        _discard(git, tree)
    return True


def _known(git: Git, tree: Worktree) -> tuple[str | None, str | None]:
    """The branch git has a worktree on, and its tip; None where git has forgotten them."""
    branch = tree.branch()
    return branch, resolve(git, f"refs/heads/{branch}") if branch else None


def _unsaved(tree: Worktree, tip: str | None) -> list[str]:
    """Files that differ from the branch; all of them where git has forgotten the branch."""
    if not tree.path.is_dir():
        return []
    if tip is None:
        files = (file for file in tree.path.rglob("*") if not file.is_dir())
        return sorted(str(file.relative_to(tree.path)) for file in files if file != tree.path / ".git")
    private = new_index(tree, tip)
    try:
        if _being_made(tree):
            _restore_missing(private)  # what was never written is not work that somebody deleted
        return changes(private)
    finally:
        drop_index(private)


def _discard(git: Git, tree: Worktree) -> None:
    """Take a worktree away; what is not committed is kept under a ref first."""
    _, tip = _known(git, tree)
    if _unsaved(tree, tip):
        _save(git, tree, tip)
        failpoint("worktree.saved")
    if tree.path.exists():
        gone = tree.path.with_name(f"{_GONE}{tree.path.name}")
        shutil.rmtree(gone, ignore_errors=True)
        tree.path.rename(gone)  # at once: a half-deleted worktree would look like one with deleted files
        failpoint("worktree.moved_away")
        shutil.rmtree(gone, ignore_errors=True)
    shutil.rmtree(tree.admin, ignore_errors=True)
    for parent in (tree.path.parent, tree.path.parent.parent):
        with suppress(OSError):  # other worktrees are in it
            parent.rmdir()


def _save(git: Git, tree: Worktree, tip: str | None) -> None:
    """Commit what stands in a worktree to refs/harness/saved/<worker>/<suite>/<name>/<commit>."""
    if tip is None:
        lost = tree.path.with_name(f"{_GONE}{tree.path.name}.index")
        private = git.using(work_tree=tree.path, index_file=lost)
    else:
        private = new_index(tree, tip)
    try:
        add_all(private, ".")
        made = private.run("write-tree").text
    finally:
        drop_index(private)
    parent = ("-p", tip) if tip else ()
    text = f"Unsaved work of {tree.place.worker} on {tree.place.problem}\n"
    commit = git.run("commit-tree", made, *parent, stdin=text.encode()).text
    git.run("update-ref", f"{SAVED}{tree.place.worker}/{tree.place.problem}/{commit[:12]}", commit)


def _remove_empty_refs(workspace: Workspace, branch: str) -> None:
    """Empty directories left where a branch's ref file is to be."""
    path = workspace.git_common_dir / "refs" / "heads" / branch
    if path.is_dir() and not any(file.is_file() for file in path.rglob("*")):
        shutil.rmtree(path, ignore_errors=True)


def refuse_foreign(tree: Worktree) -> None:
    """Leave alone what the harness did not make.

    Raises:
        RepositoryError: a link, a file or another repository is where the worktree should be.
    """
    dot = tree.path / ".git"
    foreign = tree.path.is_symlink() or (tree.path.exists() and not tree.path.is_dir())
    foreign = foreign or dot.is_symlink() or dot.is_dir()
    if not foreign and dot.is_file():
        target = Path(dot.read_text(errors="replace").strip().removeprefix("gitdir: "))
        # A pointer to nowhere is what moving the whole workspace leaves behind: it is written anew.
        foreign = target != tree.admin and (tree.path / target).exists()
    if foreign:
        raise RepositoryError(
            "something that is not a worktree of the harness is here", where=str(tree.path), remedy="move it away"
        )


def _being_made(tree: Worktree) -> bool:
    try:
        return (tree.admin / "locked").read_text() == _BEING_MADE
    except (FileNotFoundError, NotADirectoryError):
        return False


def _linked(tree: Worktree) -> bool:
    """Whether the two ends point at each other."""
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
    """Write whatever a worktree lacks. Killed anywhere, it is simply done again."""
    # Files missing from a worktree that was never finished are to be written; in a finished one, somebody deleted them.
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
        private.ask("update-index", "-q", "--really-refresh")  # non-zero only says that some files differ
        if not install_index(tree, private):
            raise RepositoryError(
                "its index is locked by another git command", where=str(tree.path), remedy="try again when that ended"
            )
    finally:
        drop_index(private)
    failpoint("worktree.index_written")
    (tree.admin / "locked").unlink()


def _mark(workspace: Workspace, tree: Worktree) -> None:
    """Mark a worktree as being made, which also keeps `git worktree prune` away from it."""
    if not tree.admin.is_dir():
        # The directory appears with the mark in it: an empty one could be pruned before the mark is written.
        fresh = workspace.state / "git" / f"new.{secrets.token_hex(6)}"
        _write(fresh / "locked", _BEING_MADE)
        tree.admin.parent.mkdir(exist_ok=True)
        fresh.rename(tree.admin)
    _write(tree.admin / "locked", _BEING_MADE)


def _write(path: Path, text: str) -> None:
    """Whole or not at all, without fsync: all of it can be derived again, and is when it turns out to be missing."""
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
    """Git on the worktree with a private index of `commit`, everything but the problem marked as not checked out."""
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
    """Make a private index the worktree's; False when another git command keeps the index locked."""
    _drop_stale_lock(tree)
    with locked_index(tree.index) as held:
        if held and private.index_file is not None:
            private.index_file.replace(tree.index)
    return held


def _drop_stale_lock(tree: Worktree) -> bool:
    """Remove a lock that a git command left when it was killed; whether there was one."""
    lock = tree.index.with_name("index.lock")
    try:
        stale = time.time() - lock.stat().st_mtime > _STALE_LOCK_S
    except FileNotFoundError:
        return False
    if stale:  # nobody but the harness works here, and its own git commands use private indexes
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
    """Paths that differ between a private index' commit and the files. Caches that Python leaves are not work."""
    options = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignored=no")
    rows = private.run("status", *options, "--", ".", *_CACHES).text.split("\0")
    return sorted(row[3:] for row in rows if row)


def add_all(private: Git, path: str) -> None:
    """Put every file below `path` into a private index, and take out those that are gone."""
    # Git leaves out a directory of which nothing is tracked yet unless the exclusions begin with its path too.
    caches = _CACHES if path == "." else [each.replace("**/", f"{path}/**/", 1) for each in _CACHES]
    # With sparse checkout off for this command, paths outside the pattern can be added; the marks still hold.
    private.run("-c", "core.sparseCheckout=false", "add", "--all", "--", path, *caches)
