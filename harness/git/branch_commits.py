"""Commits of the harness on a branch that people also use, made by git plumbing.

The index is private, and the branch moves by compare-and-swap.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import ConfigurationError, RepositoryError
from harness.failpoints import failpoint
from harness.formats.ledger_heads import with_heads_of
from harness.git.checkout import Checkout, LocalChange, index_lines, locked_index, refresh, tree_entries
from harness.git.checkout import local_changes as checkout_changes
from harness.git.environment import Git, scratch_index, text_of
from harness.model.paths import HEADS, LEDGER
from harness.workspace.files import file_lock

_RETRY_S = 20.0
_LOCK_S = 120.0
_OLD_SCRATCH_S = 3600.0
_REASON = "kernel-harness: commit"
"""The message of the harness in the reflog."""


class BranchBusyError(RepositoryError):
    """A person is rebasing the branch: moving it now would make the rebase fail at its end. Try again later."""


@dataclass(frozen=True)
class Change:
    """A change of a tree: files written as a whole (None removes one), and bytes appended to files."""

    writes: Mapping[str, bytes | None] = field(default_factory=dict)
    appends: Mapping[str, bytes] = field(default_factory=dict)


Read = Callable[[str], bytes | None]
"""path -> content on the present branch, including appends that a reset cut off."""
Build = Callable[[Read], Change]
"""Returns a change that depends on the content of the branch: called again at each attempt."""


@dataclass(frozen=True)
class Writer:
    """The repository, the person's checkout, and a directory for scratch files and locks."""

    git: Git
    checkout: Checkout
    scratch: Path
    read: Callable[[str, str], bytes | None]
    """(commit, path) -> content."""


@dataclass(frozen=True)
class AppendedFile:
    """A file that a commit appends to: its blob before and after, and the appended bytes."""

    path: str
    old: str
    """Id of the blob before the commit."""
    new: str
    """Id of the blob after the commit."""
    appended: bytes
    bytes: int
    """Size of the new content."""
    sha256: str
    """SHA-256 of the new content, in hex."""


BeforeMove = Callable[[Sequence[AppendedFile]], None]
"""Called with the files that a commit appends to, before the branch moves to it."""


def commit(
    writer: Writer, branch: str, change: Change | Build, message: str, *, before_move: BeforeMove | None = None
) -> str:
    """Commit `change` on top of `branch` and refresh the checkout.

    Args:
        writer: the repository, the checkout and the scratch directory.
        branch: the branch's short name; it must exist.
        change: the change, or a function that returns it from the branch's content.
        before_move: called with the files that the commit appends to, before the branch moves.

    Returns:
        The new commit's id; the tip's id if nothing changes.

    Raises:
        BranchBusyError: a rebase of the branch is in progress.
        RepositoryError: the branch is missing, or git refused to move it for 20 s.
    """
    with file_lock(writer.scratch / "commit.lock", wait_s=_LOCK_S, owner=f"committing on {branch}"):
        _sweep(writer.scratch)
        deadline = time.monotonic() + _RETRY_S
        while True:
            _refuse_rebase(writer.git, branch)
            tip = resolve(writer.git, f"refs/heads/{branch}")
            if tip is None:
                raise RepositoryError(f"there is no branch {branch}", where=str(writer.git.git_dir))
            lost = lost_appends(writer, branch, tip)
            resolved_change = change if isinstance(change, Change) else change(_reader(writer, tip, lost))
            built = _build(writer, tip, resolved_change, lost, message)
            if built is None:
                _publish(writer, branch, tip, tip, [])
                return tip
            failpoint("commit.built")
            if before_move is not None:
                before_move(built.appended)
            refusal = _publish(writer, branch, tip, built.commit, built.paths)
            if refusal is None:
                return built.commit
            if time.monotonic() > deadline:
                raise RepositoryError(f"{branch} cannot be moved: {refusal}", where=str(writer.git.git_dir))
            time.sleep(random.uniform(0.005, 0.05))  # noqa: S311 - only spreads the retries of several writers


def refresh_checkout(writer: Writer, branch: str) -> None:
    """Refresh the files that an earlier commit on `branch` could not refresh in the checkout.

    Args:
        writer: the repository, the checkout and the scratch directory.
        branch: the branch's short name; nothing happens while another one is checked out.
    """
    if not writer.checkout.record.exists() or writer.checkout.branch() != branch:
        return
    with (
        file_lock(writer.scratch / "commit.lock", wait_s=_LOCK_S, owner=f"refreshing the checkout of {branch}"),
        locked_index(writer.checkout.index) as is_locked,
    ):
        tip = resolve(writer.git, f"refs/heads/{branch}")
        if is_locked and tip and writer.checkout.branch() == branch:
            refresh(writer.checkout, tip, writer.scratch)


def local_changes(writer: Writer, branch: str, directory: str) -> list[LocalChange]:
    """Return the changes of a person below a directory of the checkout since the branch's tip.

    Args:
        writer: the repository, the checkout and the scratch directory.
        branch: the branch's short name; the result is [] while another one is checked out.
        directory: relative to the checkout's root, with a slash at its end.
    """
    changes = _local_changes(writer, branch, directory)
    if not changes:
        return []
    # A commit of the harness may have moved the branch but not yet refreshed the checkout: compare between commits.
    # A user who may not write the lock file cannot wait for such a commit: the first comparison counts.
    with suppress(ConfigurationError), file_lock(writer.scratch / "commit.lock", wait_s=_LOCK_S, owner="audit"):
        changes = _local_changes(writer, branch, directory)
    return changes


def _local_changes(writer: Writer, branch: str, directory: str) -> list[LocalChange]:
    tip = resolve(writer.git, f"refs/heads/{branch}")
    if tip is None or writer.checkout.branch() != branch:
        return []
    return checkout_changes(writer.checkout, tip, directory)


def own_commits(git: Git, branch: str) -> list[tuple[str, str]]:
    """Return the commits on a branch that the harness made according to git's records, newest first.

    The records are the ref that follows each commit of the harness, and the branch's reflog. A clone has neither.

    Args:
        branch: the branch's short name.

    Returns:
        Pairs (name of the record, commit id).
    """
    record_by_commit: dict[str, str] = {}
    last_written = resolve(git, _last_written_ref(branch))
    if last_written is not None:
        record_by_commit[last_written] = _last_written_ref(branch)
    reflog = git.ask("log", "--walk-reflogs", "--format=%H %gs", f"refs/heads/{branch}", "--")
    for line in reflog.text.splitlines():
        commit_id, _, reason = line.partition(" ")
        if reason == _REASON:
            record_by_commit.setdefault(commit_id, f"the reflog of {branch}")
    return [(name, commit_id) for commit_id, name in record_by_commit.items()]


def resolve(git: Git, name: str) -> str | None:
    """Return the commit that a ref names, or None."""
    answer = git.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return answer.text if answer.code == 0 else None


def check_path(path: str) -> None:
    """Refuse a path that is not a plain path inside the repository.

    Raises:
        RepositoryError: the path is absolute, leads upwards, is empty or in `.git`, or has a control character.
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} or part.lower() == ".git" for part in parts) or any(c in path for c in "\0\n\r"):
        raise RepositoryError(f"not a path inside the repository: {path!r}")


@dataclass(frozen=True)
class _BuiltCommit:
    commit: str
    paths: Sequence[str]
    appended: Sequence[AppendedFile]


def _build(writer: Writer, tip: str, change: Change, lost: Mapping[str, str], message: str) -> _BuiltCommit | None:
    """Make the commit's objects; None when the tree would be the tip's."""
    for path in (*change.writes, *change.appends):
        check_path(path)
    heads = {HEADS: _heads_with(writer, tip, change, lost)} if lost else {}

    def content(path: str) -> bytes | None:
        if path in heads:
            return heads[path]
        if path in change.appends:
            content_before = change.writes.get(path) or writer.read(lost.get(path, tip), path) or b""
            return content_before + change.appends[path]
        return change.writes[path] if path in change.writes else writer.read(lost[path], path)

    paths = sorted({*change.writes, *change.appends, *lost, *heads})
    present = tree_entries(writer.git, tip)
    blobs = _store(writer, paths, content)
    entries: dict[str, tuple[str, str] | None] = {}
    for path in paths:
        mode = present[path][0] if path in present and present[path][0].startswith("100") else "100644"
        entries[path] = (mode, blobs[path].id) if path in blobs else None
    with scratch_index(writer.git, writer.scratch) as git:
        git.run("read-tree", tip)
        git.run("update-index", "-z", "--index-info", stdin=index_lines(entries))
        tree = git.run("write-tree").text
    failpoint("commit.tree_written")
    if tree == writer.git.run("rev-parse", f"{tip}^{{tree}}").text:
        return None
    parents = [part for parent in (tip, *sorted(set(lost.values()))) for part in ("-p", parent)]
    appended = [
        AppendedFile(path, present[path][1], blobs[path].id, data, blobs[path].bytes, blobs[path].sha256)
        for path, data in change.appends.items()
        if path in present and path in blobs and path not in change.writes and path not in lost
    ]
    return _BuiltCommit(writer.git.run("commit-tree", tree, *parents, stdin=message.encode()).text, paths, appended)


def _heads_with(writer: Writer, tip: str, change: Change, lost: Mapping[str, str]) -> bytes:
    """Return heads.yaml with the ends of the files that are put back."""
    ends = {path: writer.read(commit_id, path) for path, commit_id in lost.items() if path not in change.writes}
    ends = {path: (content or b"") + change.appends.get(path, b"") for path, content in ends.items()}
    return with_heads_of(change.writes.get(HEADS) or writer.read(lost.get(HEADS, tip), HEADS), ends)


def _reader(writer: Writer, tip: str, lost: Mapping[str, str]) -> Read:
    return lambda path: writer.read(lost.get(path, tip), path)


@dataclass(frozen=True)
class _StoredBlob:
    id: str
    bytes: int
    sha256: str


def _store(writer: Writer, paths: Iterable[str], content: Callable[[str], bytes | None]) -> dict[str, _StoredBlob]:
    """Write blobs with one git command, with one content in memory at a time; paths without content are left out."""
    files: dict[str, Path] = {}
    facts: dict[str, tuple[int, str]] = {}
    try:
        for path in paths:
            data = content(path)
            if data is None:
                continue
            files[path] = writer.scratch / f"blob.{secrets.token_hex(8)}"
            files[path].write_bytes(data)
            facts[path] = len(data), hashlib.sha256(data).hexdigest()
        names = "".join(f"{file}\n" for file in files.values()).encode()
        command = ("hash-object", "-w", "--no-filters", "--stdin-paths")
        ids = writer.git.run(*command, stdin=names).text.split() if files else []
        return {path: _StoredBlob(oid, *facts[path]) for path, oid in zip(files, ids, strict=True)}
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)


def _publish(  # noqa: C901 - a sequence of steps, each with its own exit
    writer: Writer, branch: str, tip: str, new_commit: str, paths: Sequence[str]
) -> str | None:
    """Move the branch from `tip` to `new_commit` and refresh the checkout; return git's refusal, or None."""
    checkout = writer.checkout
    if not paths and not checkout.record.exists():
        return None
    behind = checkout.behind()
    if paths:
        present = tree_entries(writer.git, tip)
        for path in paths:
            former_blobs = behind.setdefault(path, [])
            blob = present[path][1] if path in present else None
            if blob not in former_blobs:
                former_blobs.append(blob)
        checkout.remember(behind)
        failpoint("commit.recorded")
    if checkout.branch() != branch:
        refusal = _move(writer.git, branch, tip, new_commit) if paths else None
        if refusal is None and paths and checkout.branch() != branch:
            # The branch is not checked out: a later checkout of it takes these files from git.
            checkout.remember({path: blobs for path, blobs in behind.items() if path not in paths})
            return None
        if refusal is not None or not paths:
            return refusal
        paths = ()  # a person switched to the branch while it moved: only the refresh remains
    with locked_index(checkout.index) as is_locked:
        if paths:
            refusal = _move(writer.git, branch, tip, new_commit)
            if refusal is not None:
                return refusal
        failpoint("commit.branch_moved")
        if is_locked and checkout.branch() == branch:
            refresh(checkout, new_commit, writer.scratch)
    return None


def _move(git: Git, branch: str, tip: str, new_commit: str) -> str | None:
    """Move a branch and the ref of the last written commit by compare-and-swap; return git's refusal, or None."""
    updates = (f"update refs/heads/{branch} {new_commit} {tip}", f"update {_last_written_ref(branch)} {new_commit}")
    transaction = "\n".join(("start", *updates, "prepare", "commit", ""))
    reason = ("-m", _REASON, "--create-reflog")
    answer = git.ask("update-ref", *reason, "--stdin", stdin=transaction.encode())
    return None if answer.code == 0 else answer.stderr.strip()


def _last_written_ref(branch: str) -> str:
    return f"refs/harness/written/{branch}"


def lost_appends(writer: Writer, branch: str, tip: str) -> dict[str, str]:
    """Return the ledger files whose end `tip` lacks although the harness once committed it.

    Ledger files only grow. An end is lost if a person resets or force-moves the branch, or if a `git stash` races with
    a commit: git's `reset --hard` moves the branch back to the commit that it read before.

    Args:
        branch: the branch's short name.

    Returns:
        Path of the ledger file -> the commit that has its end.
    """
    last_written = resolve(writer.git, _last_written_ref(branch))
    if last_written is None or last_written == tip:
        return {}
    if writer.git.ask("merge-base", "--is-ancestor", last_written, tip).code == 0:
        return {}
    former, present = (tree_entries(writer.git, commit_id, LEDGER) for commit_id in (last_written, tip))
    lost = {}
    for path, entry in former.items():
        if entry == present.get(path):
            continue
        content = writer.read(last_written, path) or b""
        if content.startswith(writer.read(tip, path) or b""):
            lost[path] = last_written
    return lost


def _refuse_rebase(git: Git, branch: str) -> None:
    for head_name in ("rebase-merge/head-name", "rebase-apply/head-name"):
        for directory in (git.git_dir, *sorted((git.git_dir / "worktrees").glob("*"))):
            if (text_of(directory / head_name) or "").strip() == f"refs/heads/{branch}":
                raise BranchBusyError(
                    f"{branch} is being rebased: nothing is committed to it until the rebase has ended",
                    where=str(directory),
                    remedy="finish with `git rebase --continue`, or cancel it with `git rebase --abort`",
                )


def _sweep(scratch: Path) -> None:
    """Remove scratch files that a killed harness left."""
    for file in scratch.glob("*.*"):
        if file.name.startswith(("index.", "blob.")) and time.time() - file.stat().st_mtime > _OLD_SCRATCH_S:
            file.unlink(missing_ok=True)
