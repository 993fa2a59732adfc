"""The repository: refs, objects, commits on branches, worktrees. The only user of GitPython.

GitPython keeps `git cat-file` running, so that reading an object costs no process; commands run through
`harness.git.environment`, with the user's configuration, hooks and variables kept out.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from harness.errors import RepositoryError
from harness.git import branch_commits, checkout, worktrees
from harness.git import solution_commits as submissions
from harness.git.branch_commits import BranchBusyError, BranchMovedError, check_path
from harness.git.checkout import LocalChange
from harness.git.environment import Git
from harness.git.objects import Commit, commit_of, trailers_of, tree_entries_of
from harness.git.solution_commits import Submission
from harness.git.worktrees import WorktreeInfo
from harness.workspace.directories import Workspace

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # without git `harness doctor` must still be able to say so
import git as gitpython

__all__ = [
    "BranchBusyError",
    "BranchMovedError",
    "Commit",
    "Repo",
    "Submission",
    "UnfitTreeError",
    "WorktreeInfo",
]

T = TypeVar("T")
SAVED = worktrees.SAVED


class UnfitTreeError(RepositoryError):
    """A tree holds what cannot be judged: a submodule, or a link that leads out of it."""


@dataclass(frozen=True)
class Blob:
    """One file's content in git."""

    id: str
    bytes: int


class _CleanGit(gitpython.Git):
    """GitPython's command wrapper, with our environment instead of the process' own."""

    def __init__(self, plain: Git) -> None:
        super().__init__(str(plain.git_dir))
        self._plain = plain

    def execute(self, command: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - GitPython's signature
        # `env -i` because GitPython always adds the process' environment, GIT_* included.
        clean = [f"{name}={value}" for name, value in self._plain.environment().items()]
        return super().execute(["env", "-i", *clean, *self._plain.command(*command[1:])], *args, **options)

    def alive(self) -> bool:
        """Return whether every kept process is running."""
        return all(kept is None or kept.poll() is None for kept in (self.cat_file_all, self.cat_file_header))


class Repo:
    """A workspace's git repository. Safe to use from several threads; `close` (or `with`) ends its git processes."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.git = Git(workspace.git_common_dir)
        self._scratch = workspace.state / "git"
        self._reading = threading.Lock()
        self._cat: _CleanGit | None = None
        self._cat_pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the git processes kept for reading."""
        with self._reading:
            if self._cat is not None and self._cat_pid == os.getpid():
                self._cat.clear_cache()
            self._cat = None

    # --- refs ---

    def tip(self, branch: str) -> str:
        """The commit a branch is at.

        Raises:
            RepositoryError: there is no such branch.
        """
        header = self._header(f"refs/heads/{branch}^{{commit}}")
        if header is None:
            raise RepositoryError(f"there is no branch {branch}", where=str(self.workspace.root))
        return header[0]

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Branch -> commit, of the branches whose names start with `prefix`."""
        return {name: oid for name, oid in self._refs("refs/heads/", prefix).items() if name.startswith(prefix)}

    def _refs(self, space: str, prefix: str = "") -> dict[str, str]:
        pattern = space + prefix.rpartition("/")[0]
        listing = self.git.run("for-each-ref", "--format=%(objectname) %(refname)", pattern.rstrip("/")).text
        pairs = (line.split(" ", 1) for line in listing.splitlines())
        return {name.removeprefix(space): oid for oid, name in pairs}

    def saved_work(self, prefix: str = "") -> dict[str, str]:
        """`<worker>/<suite>/<name>/<commit>` -> commit: unsaved work that a repair or forced removal set aside."""
        return {name: oid for name, oid in self._refs(SAVED, prefix).items() if name.startswith(prefix)}

    # --- objects ---

    def has_object(self, oid: str) -> bool:
        """Return whether the repository holds an object."""
        return self._header(oid) is not None

    def tree_of(self, commit: str, path: str = "") -> str | None:
        """Id of the tree or blob at `path` ("" is the root) in a commit, or None."""
        header = self._header(_at(commit, path))
        return header[0] if header else None

    def read(self, commit: str, path: str) -> bytes | None:
        """A file's content in a commit, or None where there is no file."""
        found = self._object(_at(commit, path))
        return found[1] if found and found[0] == "blob" else None

    def read_many(self, commit: str, paths: Sequence[str]) -> dict[str, bytes]:
        """Path -> content, of those of `paths` that are files in a commit."""
        found = ((path, self.read(commit, path)) for path in paths)
        return {path: data for path, data in found if data is not None}

    def files(self, commit: str, path: str = "") -> list[str]:
        """Every file below `path` in a commit, as paths from the repository's root, sorted."""
        inside = ["--", f"{path.rstrip('/')}/"] if path else []
        answer = self.git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, *inside)
        return [name for name in answer.text.split("\0") if name]

    def blobs(self, commit: str, path: str) -> dict[str, Blob]:
        """Every file below `path` in a commit, with its object id and size."""
        answer = self.git.run("ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", f"{path.rstrip('/')}/")
        heads = (line.partition("\t") for line in answer.text.split("\0") if line)
        fields = ((name, head.split()) for head, _, name in heads)
        return {name: Blob(oid, int(size)) for name, (_, kind, oid, size) in fields if kind == "blob"}

    def export(self, commit: str, path: str, destination: Path) -> Path:
        """Write the subtree at `path` of a commit to `destination`, whole or not at all; returns `destination`.

        A destination that is there already is left as it is: callers name it by content.

        Raises:
            RepositoryError: no such subtree.
            UnfitTreeError: it holds a submodule or a link that leads out of it.
        """
        if destination.is_dir():
            return destination
        entries = self._subtree(commit, path)
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        try:
            for name, (mode, oid) in entries.items():
                self._write_entry(temporary, name, mode, oid)
            temporary.chmod(0o755)
            with suppress(OSError):  # another process was first, with the same content
                temporary.rename(destination)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if not destination.is_dir():
            raise RepositoryError("cannot be written", where=str(destination))
        return destination

    def _subtree(self, commit: str, path: str) -> dict[str, tuple[str, str]]:
        """Path below `path` -> (mode, id) of every entry that is no directory."""
        entries: dict[str, tuple[str, str]] = {}
        waiting = [("", _at(commit, path))]
        while waiting:
            below, name = waiting.pop()
            tree = self._object(name)
            if tree is None or tree[0] != "tree":
                raise RepositoryError(f"there is no directory {path!r} in commit {commit[:12]}")
            for entry in tree_entries_of(tree[1]):
                if entry.is_tree:
                    waiting.append((f"{below}{entry.name}/", entry.id))
                else:
                    entries[f"{below}{entry.name}"] = entry.mode, entry.id
        return entries

    def _write_entry(self, root: Path, name: str, mode: str, oid: str) -> None:
        check_path(name)
        if mode == "160000":
            raise UnfitTreeError(f"{name} is a submodule: only plain files can be judged")
        found = self._object(oid)
        if found is None:
            raise RepositoryError(f"object {oid} of {name} is missing", remedy="see `git fsck`")
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            target = os.path.normpath(os.path.join(os.path.dirname(name), os.fsdecode(found[1])))  # noqa: PTH118, PTH120
            if os.path.isabs(target) or target.split("/")[0] == "..":  # noqa: PTH117 - links are text, not paths
                raise UnfitTreeError(f"{name} is a link that leads out of its directory")
            file.symlink_to(os.fsdecode(found[1]))
            return
        file.write_bytes(found[1])
        if mode == "100755":
            file.chmod(file.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def is_ancestor(self, old: str, new: str) -> bool:
        """Return whether `old` is `new` or an ancestor of it."""
        return self.git.ask("merge-base", "--is-ancestor", old, new).code == 0

    def new_commits(self, branch_commit: str, base: str) -> list[Commit]:
        """Commits that `branch_commit` has and `base` has not, oldest first."""
        line = self.line_of_commits(branch_commit, base)
        return line if line is not None else self._log("--reverse", "--topo-order", branch_commit, f"^{base}")

    def line_of_commits(self, newer: str, older: str, *, most: int = 8) -> list[Commit] | None:
        """Commits after `older` up to `newer`, oldest first; None unless they are a line of at most so many commits.

        Reads objects, so that it costs no process: a worker's branch moves by one commit at a time.
        """
        line: list[Commit] = []
        oid = newer
        while oid != older:
            found = self._object(oid) if len(line) < most else None
            commit = commit_of(oid, found[1]) if found and found[0] == "commit" else None
            if commit is None or len(commit.parents) != 1:
                return None
            line.append(commit)
            oid = commit.parents[0]
        return line[::-1]

    def history(self, commit: str, path: str) -> Sequence[str]:
        """Every commit up to `commit` that changed something at `path`, newest first, merged ones included."""
        return self.git.run("rev-list", "--full-history", commit, "--", path.rstrip("/")).text.split()

    def commit(self, oid: str) -> Commit:
        """One commit.

        Raises:
            RepositoryError: the repository does not hold it.
        """
        return self._log("--max-count=1", oid)[0]

    def _log(self, *which: str) -> list[Commit]:
        form = "--format=%H%x00%T%x00%P%x00%ct%x00%s%x00%B%x00"
        plain = ("--no-show-signature", "--no-mailmap", "--no-notes", "--no-color", "--encoding=UTF-8")
        fields = self.git.run("log", *plain, form, *which, "--").text.split("\0")
        return [_commit(fields[start : start + 6]) for start in range(0, len(fields) - 1, 6)]

    # --- commits on branches that people use too ---

    def commit_files(
        self, branch: str, files: Mapping[str, bytes | None], message: str, *, expect: str | None = None
    ) -> str:
        """Write files (None removes one) on top of a branch; the new commit, or the tip's where nothing changes.

        Only objects and the ref are touched, by compare-and-swap; it tries again when the branch moved. Where the
        workspace's checkout is on that branch it is refreshed, but for files that a person has changed.

        Raises:
            BranchMovedError: `expect` is given and the branch is not there.
            BranchBusyError: a person is rebasing the branch.
            RepositoryError: git refused.
        """
        change = branch_commits.Change(writes=files)
        return branch_commits.commit(self._writer(), branch, change, message, expect=expect)

    def commit_built(
        self,
        branch: str,
        build: branch_commits.Build,
        message: str,
        *,
        before_move: branch_commits.BeforeMove | None = None,
    ) -> str:
        """Like `commit_files`, with a change that `build` makes from what the branch holds, again at each attempt.

        `before_move` is called with the files that are appended to, before the branch moves.
        """
        return branch_commits.commit(self._writer(), branch, build, message, before_move=before_move)

    def refresh_checkout(self, branch: str) -> None:
        """Make up for a refresh of the checkout that could not be done when `branch` was committed to."""
        branch_commits.refresh_checkout(self._writer(), branch)

    def checkout_state(self, branch: str) -> list[str]:
        """Return a sentence for each part of `branch` that the checkout lacks, with the command that fixes it."""
        return checkout.state(self._checkout(), branch, self.tip(branch))

    def is_edited(self, branch: str, path: str) -> bool:
        """Return whether a person changed a file of the checkout of `branch`; not whether they deleted it."""
        return checkout.is_edited(self._checkout(), branch, path, self.tree_of(self.tip(branch), path))

    def local_changes(self, branch: str, directory: str) -> list[LocalChange]:
        """Return what a person changed below a directory of the checkout since the tip of the branch that it is on."""
        return branch_commits.local_changes(self._writer(), branch, directory)

    def own_commits(self, branch: str) -> list[tuple[str, str]]:
        """Return the commits that this repository's records name as the harness' on a branch: (record, commit)."""
        return branch_commits.own_commits(self.git, branch)

    def is_shallow(self) -> bool:
        """Return whether the history here is cut off (`git clone --depth`)."""
        return self.git.run("rev-parse", "--is-shallow-repository").text == "true"

    def lost_appends(self, branch: str) -> list[str]:
        """Ledger files whose ends a reset of the branch cut off; the next commit of the harness puts them back."""
        return sorted(branch_commits.lost_appends(self._writer(), branch, self.tip(branch)))

    def _writer(self) -> branch_commits.Writer:
        return branch_commits.Writer(self.git, self._checkout(), self._scratch, self.read)

    def _checkout(self) -> checkout.Checkout:
        root = self.workspace.root
        git_dir = worktrees.git_dir_of(root)
        return checkout.Checkout(Git(git_dir, root), root, git_dir / "harness-checkout.json")

    # --- worktrees ---

    def add_worktree(self, worker: str, problem: str, branch: str, base: str) -> Path:
        """The worktree of a worker on a problem, on `branch` (made at commit `base` where it is absent).

        A healthy one is used as it is, a broken or half-made one is completed; no file in it is ever overwritten.

        Raises:
            RepositoryError: the place or the branch is taken by something that is not the harness'.
        """
        return worktrees.add(self.workspace, self.git, worktrees.Place(worker, problem), branch, base)

    def remove_worktree(self, worker: str, problem: str, *, force: bool = False) -> None:
        """Remove a worktree; its branch stays.

        Args:
            worker: the worker.
            problem: the problem's key.
            force: remove it also with unsaved or unmerged work. Unsaved work is saved first (`saved_work`).

        Raises:
            RepositoryError: it holds unsaved or unmerged work, which the message names.
        """
        worktrees.remove(self.workspace, self.git, worktrees.Place(worker, problem), force=force)

    def retire_worktree(self, worker: str, problem: str) -> bool:
        """Remove a worktree if its branch holds all of its work; the branch stays, and `add_worktree` makes it again.

        Returns:
            False where it holds unsaved work, or where git has forgotten its branch: then nothing is removed.

        Raises:
            RepositoryError: something that is not the harness' is there.
        """
        return worktrees.retire(self.workspace, self.git, worktrees.Place(worker, problem))

    def worktrees(self) -> list[WorktreeInfo]:
        """Every worktree of the harness, healthy or not."""
        return worktrees.listing(self.workspace)

    def commit_solution(
        self,
        worktree: Path,
        problem: str,
        target: str,
        message: str,
        trailers: Mapping[str, str],
        *,
        even_if_unchanged: bool = False,
    ) -> Submission:
        """Commit problems/<problem>/solutions/<target>/ of a worktree on the worktree's own branch.

        Raises:
            RepositoryError: anything else in the worktree changed (the message lists it), the solution is empty, too
                large or not of plain files, or the directory is not a worktree of the harness.
        """
        return submissions.commit_solution(
            self.workspace, self.git, worktree, problem, target,
            submissions.Message(message, trailers), even_if_unchanged=even_if_unchanged,
        )  # fmt: skip

    # --- GitPython ---

    def _object(self, name: str) -> tuple[str, bytes] | None:
        found = self._ask_reader(lambda reader: reader.get_object_data(name))
        return (_text(found[1]), bytes(found[3])) if found else None

    def _header(self, name: str) -> tuple[str, str, int] | None:
        found = self._ask_reader(lambda reader: reader.get_object_header(name))
        return (_text(found[0]), _text(found[1]), found[2]) if found else None

    def _ask_reader(self, question: Callable[[_CleanGit], T]) -> T | None:
        """Ask a kept `git cat-file`; None when there is no such object. One that died is replaced once."""
        with self._reading:
            for _ in range(2):
                if self._cat is None or self._cat_pid != os.getpid():  # a forked child must not share these pipes
                    self._cat, self._cat_pid = _CleanGit(self.git), os.getpid()
                try:
                    return question(self._cat)
                except (ValueError, BrokenPipeError):
                    if self._cat.alive():
                        return None
                    self._cat = None
        raise RepositoryError("git cat-file ends at once", where=str(self.git.git_dir), remedy="try `git fsck`")


def requirements(workspace: Workspace) -> list[str]:
    """Return a sentence for each setting of the repository that the harness cannot work with."""
    # By file: git refuses to open a repository with an extension that it does not know.
    file = str(workspace.git_common_dir / "config")
    answer = Git(workspace.git_common_dir).ask("config", "--file", file, "--get-regexp", r"^extensions\.|^core\.bare$")
    settings = dict(line.lower().partition(" ")[::2] for line in answer.text.splitlines())
    problems = []
    if settings.get("extensions.refstorage", "files") != "files":
        problems.append(
            "refs are stored as reftable, which cannot be watched: `git refs migrate --ref-format=files` (git 2.46)"
        )
    if settings.get("extensions.objectformat", "sha1") != "sha1":
        problems.append("object ids are SHA-256, which GitPython cannot read: make the workspace in a SHA-1 repository")
    if settings.get("core.bare") == "true":
        problems.append("the repository is bare: the workspace needs a checkout")
    return problems


def _text(value: str | bytes) -> str:
    """GitPython's types say str, and most of its versions give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _at(commit: str, path: str) -> str:
    if not path:
        return f"{commit}^{{tree}}"
    check_path(path.rstrip("/"))
    return f"{commit}:{path.rstrip('/')}"


def _commit(fields: Sequence[str]) -> Commit:
    oid, tree, parents, at, subject, body = fields
    return Commit(oid.strip(), tree, tuple(parents.split()), int(at), trailers_of(body), subject)
