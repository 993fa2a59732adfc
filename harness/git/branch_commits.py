"""Commits of the harness on a branch that people also use: plumbing with a private index and compare-and-swap."""

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
from harness.git.environment import Git
from harness.model.paths import HEADS, LEDGER
from harness.workspace.files import file_lock

_RETRY_S = 20.0
_LOCK_S = 120.0
_OLD_SCRATCH_S = 3600.0
_REASON = "kernel-harness: commit"
"""What the harness writes into the reflog."""


class BranchMovedError(RepositoryError):
    """The branch is not where the caller expected it."""


class BranchBusyError(RepositoryError):
    """A person is rebasing the branch: moving it now would make their rebase fail at its end. Try again later."""


@dataclass(frozen=True)
class Change:
    """A change of a tree: files written whole (None removes one), and bytes appended to files."""

    writes: Mapping[str, bytes | None] = field(default_factory=dict)
    appends: Mapping[str, bytes] = field(default_factory=dict)


Read = Callable[[str], bytes | None]
"""path -> content on the branch as it stands, with what a reset cut off."""
Build = Callable[[Read], Change]
"""A change that depends on what the branch holds: asked again at each attempt."""


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
    """A file that a commit appends to: its blob before and after, and what comes on top."""

    path: str
    old: str
    """The blob's id before."""
    new: str
    appended: bytes
    bytes: int
    """Of the new content."""
    sha256: str
    """Of the new content, in hex."""


BeforeMove = Callable[[Sequence[AppendedFile]], None]
"""Called with the files that a commit appends to, before the branch moves to it."""


def commit(
    writer: Writer,
    branch: str,
    change: Change | Build,
    message: str,
    *,
    expect: str | None = None,
    before_move: BeforeMove | None = None,
) -> str:
    """Commit `change` on top of `branch` and refresh the checkout; the commit's id (the tip's where nothing changes).

    Raises:
        BranchMovedError: `expect` is given and the tip is another.
        BranchBusyError: a rebase of the branch is in progress.
        RepositoryError: the branch is absent, or git kept refusing for 20 s.
    """
    writer.scratch.mkdir(parents=True, exist_ok=True)
    with file_lock(writer.scratch / "commit.lock", wait_s=_LOCK_S, owner=f"committing on {branch}"):
        _sweep(writer.scratch)
        deadline = time.monotonic() + _RETRY_S
        while True:
            _refuse_rebase(writer.git, branch)
            tip = resolve(writer.git, f"refs/heads/{branch}")
            if tip is None:
                raise RepositoryError(f"there is no branch {branch}", where=str(writer.git.git_dir))
            if expect is not None and tip != expect:
                raise BranchMovedError(f"{branch} is at {tip[:12]}, not at {expect[:12]}")
            lost = lost_appends(writer, branch, tip)
            wanted = change if isinstance(change, Change) else change(_reader(writer, tip, lost))
            made = _build(writer, tip, wanted, lost, message)
            if made is None:
                _publish(writer, branch, tip, tip, [])
                return tip
            failpoint("commit.built")
            if before_move is not None:
                before_move(made.appended)
            refusal = _publish(writer, branch, tip, made.commit, made.paths)
            if refusal is None:
                return made.commit
            if time.monotonic() > deadline:
                raise RepositoryError(f"{branch} cannot be moved: {refusal}", where=str(writer.git.git_dir))
            time.sleep(random.uniform(0.005, 0.05))  # noqa: S311 - only spreads the retries of several writers


def refresh_checkout(writer: Writer, branch: str) -> None:
    """Make up for a refresh that a former commit on `branch` had to leave."""
    if not writer.checkout.record.exists() or writer.checkout.branch() != branch:
        return
    writer.scratch.mkdir(parents=True, exist_ok=True)
    with (
        file_lock(writer.scratch / "commit.lock", wait_s=_LOCK_S, owner=f"refreshing the checkout of {branch}"),
        locked_index(writer.checkout.index) as held,
    ):
        tip = resolve(writer.git, f"refs/heads/{branch}")
        if held and tip and writer.checkout.branch() == branch:
            refresh(writer.checkout, tip, writer.scratch)


def local_changes(writer: Writer, branch: str, directory: str) -> list[LocalChange]:
    """Return what a person changed below a directory of the checkout since the branch's tip; [] off the branch."""
    changes = _local_changes(writer, branch, directory)
    if not changes:
        return []
    # A commit of the harness may have been on its way between the branch and the checkout: look between commits.
    # Who may not write the lock cannot wait for such a commit: then what was seen first counts.
    with suppress(ConfigurationError), file_lock(writer.scratch / "commit.lock", wait_s=_LOCK_S, owner="audit"):
        changes = _local_changes(writer, branch, directory)
    return changes


def _local_changes(writer: Writer, branch: str, directory: str) -> list[LocalChange]:
    tip = resolve(writer.git, f"refs/heads/{branch}")
    if tip is None or writer.checkout.branch() != branch:
        return []
    return checkout_changes(writer.checkout, tip, directory)


def own_commits(git: Git, branch: str) -> list[tuple[str, str]]:
    """Return the commits that git's own records name as the harness' on a branch: (record, commit), newest first.

    The records are the ref that follows each commit of the harness, and the branch's reflog. A clone has neither.
    """
    found: dict[str, str] = {}
    written = resolve(git, _written(branch))
    if written is not None:
        found[written] = _written(branch)
    reflog = git.ask("log", "--walk-reflogs", "--format=%H %gs", f"refs/heads/{branch}", "--")
    for line in reflog.text.splitlines():
        commit_id, _, reason = line.partition(" ")
        if reason == _REASON:
            found.setdefault(commit_id, f"the reflog of {branch}")
    return [(name, commit_id) for commit_id, name in found.items()]


def resolve(git: Git, name: str) -> str | None:
    """The commit a ref names, or None."""
    answer = git.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return answer.text if answer.code == 0 else None


def check_path(path: str) -> None:
    """Refuse what is not a plain path inside the repository.

    Raises:
        RepositoryError: absolute, upwards, empty, in `.git`, or with a control character.
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
            begun = change.writes.get(path) or writer.read(lost.get(path, tip), path) or b""
            return begun + change.appends[path]
        return change.writes[path] if path in change.writes else writer.read(lost[path], path)

    paths = sorted({*change.writes, *change.appends, *lost, *heads})
    present = tree_entries(writer.git, tip, dict.fromkeys(paths))
    blobs = _store(writer, paths, content)
    entries: dict[str, tuple[str, str] | None] = {}
    for path in paths:
        mode = present[path][0] if path in present and present[path][0].startswith("100") else "100644"
        entries[path] = (mode, blobs[path].id) if path in blobs else None
    private = writer.scratch / f"index.{secrets.token_hex(6)}"
    git = writer.git.using(index_file=private)
    try:
        git.run("read-tree", tip)
        git.run("update-index", "-z", "--index-info", stdin=index_lines(entries, len(tip)))
        tree = git.run("write-tree").text
    finally:
        private.unlink(missing_ok=True)
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
    """heads.yaml with the ends of the files that are put back."""
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


def _publish(  # noqa: C901 - one step after the other, each with its way back
    writer: Writer, branch: str, tip: str, made: str, paths: Sequence[str]
) -> str | None:
    """Move the branch from `tip` to `made` if it still is there, and the checkout with it; git's refusal, or None."""
    checkout = writer.checkout
    if not paths and not checkout.record.exists():
        return None
    behind = checkout.behind()
    if paths:
        present = tree_entries(writer.git, tip, dict.fromkeys(paths))
        for path in paths:
            known = behind.setdefault(path, [])
            blob = present[path][1] if path in present else None
            if blob not in known:
                known.append(blob)
        checkout.remember(behind)
        failpoint("commit.recorded")
    if checkout.branch() != branch:
        refusal = _move(writer.git, branch, tip, made) if paths else None
        if refusal is None and paths and checkout.branch() != branch:
            # Nobody looks at the branch: whoever checks it out gets these files from git itself.
            checkout.remember({path: blobs for path, blobs in behind.items() if path not in paths})
            return None
        if refusal is not None or not paths:
            return refusal
        paths = ()  # a person switched to the branch while it moved: only the refresh is left to do
    with locked_index(checkout.index) as held:
        if paths:
            refusal = _move(writer.git, branch, tip, made)
            if refusal is not None:
                return refusal
        failpoint("commit.branch_moved")
        if held and checkout.branch() == branch:
            refresh(checkout, made, writer.scratch)
    return None


def _move(git: Git, branch: str, tip: str, made: str) -> str | None:
    """Compare-and-swap, together with the note of what the harness wrote last; git's words if it refused."""
    moves = f"start\nupdate refs/heads/{branch} {made} {tip}\nupdate {_written(branch)} {made}\nprepare\ncommit\n"
    reason = ("-m", _REASON, "--create-reflog")
    answer = git.ask("update-ref", *reason, "--stdin", stdin=moves.encode())
    return None if answer.code == 0 else answer.stderr.strip()


def _written(branch: str) -> str:
    return f"refs/harness/written/{branch}"


def lost_appends(writer: Writer, branch: str, tip: str) -> dict[str, str]:
    """Return the ledger files whose end `tip` lacks though the harness once committed it -> the commit that has it.

    Ledger files only ever grow.
    That happens when a person resets or force-moves the branch, or a `git stash` races with a commit: git's
    `reset --hard` puts the branch back to where it found it.
    """
    written = resolve(writer.git, _written(branch))
    if written is None or written == tip:
        return {}
    if writer.git.ask("merge-base", "--is-ancestor", written, tip).code == 0:
        return {}
    listing = writer.git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", written, "--", f"{LEDGER}/")
    paths = dict.fromkeys(path for path in listing.text.split("\0") if path)
    ours, theirs = (tree_entries(writer.git, commit_id, paths) for commit_id in (written, tip))
    lost = {}
    for path in paths:
        if ours[path] == theirs.get(path):
            continue
        has = writer.read(written, path) or b""
        if has.startswith(writer.read(tip, path) or b""):
            lost[path] = written
    return lost


def _refuse_rebase(git: Git, branch: str) -> None:
    for head_name in ("rebase-merge/head-name", "rebase-apply/head-name"):
        for directory in (git.git_dir, *sorted((git.git_dir / "worktrees").glob("*"))):
            try:
                name = (directory / head_name).read_text().strip()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if name == f"refs/heads/{branch}":
                raise BranchBusyError(
                    f"{branch} is being rebased: nothing is committed to it until that has ended",
                    where=str(directory),
                    remedy="finish with `git rebase --continue`, or give it up with `git rebase --abort`",
                )


def _sweep(scratch: Path) -> None:
    """Remove scratch files that a killed harness left."""
    for file in scratch.glob("*.*"):
        if file.name.startswith(("index.", "blob.")) and time.time() - file.stat().st_mtime > _OLD_SCRATCH_S:
            file.unlink(missing_ok=True)
