"""Update of a person's checkout to a commit that the harness made on the branch they have checked out.

Moving a branch under a checkout makes the harness' files look deleted or reverted there, and the next `git commit`
would commit that. So the index and the files follow, unless a person has changed them. This happens under git's own
`index.lock`: no git command of the person sees the branch moved and the index not. Files that cannot follow at once
are recorded (`Behind`) and updated later.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import FormatError, RepositoryError
from harness.failpoints import failpoint
from harness.formats.bounded import load_json_file
from harness.git.environment import Git, checked_out_branch
from harness.git.tree_ids import blob_id
from harness.model.paths import LEDGER
from harness.model.printable import first_names
from harness.workspace.files import atomic_write
from harness.workspace.processes import start_ticks

LOCK_WAIT_S = 2.0
_LOCK_POLL_S = 0.01
_LOCK_TEXT = "kernel-harness"
_SHOWN = 8
_TEMPORARY = re.compile(r"(^|/)\.[^/]*\.[0-9a-f]{12}\.tmp$")
"""Names of files that a refresh writes before it renames them."""
_HISTORY = 500

ChangeKind = Literal["modified", "deleted", "staged", "untracked", "in conflict"]
Blob = str | None
"""A blob's id, or None without a file."""
Behind = dict[str, list[Blob]]
"""Paths that the checkout may not show yet -> the contents that the harness has replaced there: no person's work."""


@dataclass(frozen=True)
class Checkout:
    """A person's checkout: its index and files, and the record of the files that are not refreshed yet."""

    git: Git
    root: Path
    record: Path

    @property
    def index(self) -> Path:
        """The checkout's index."""
        return self.git.git_dir / "index"

    def branch(self) -> str | None:
        """The branch that is checked out; None when HEAD is detached (a rebase or bisect, for instance)."""
        return checked_out_branch(self.git.git_dir)

    def behind(self) -> Behind:
        """Return the files that an earlier commit did not refresh."""
        try:
            paths = load_json_file(self.record)["paths"]
        except (FileNotFoundError, FormatError, KeyError, TypeError):
            return {}  # only a hint about stale files: an unreadable one costs a `git status` that is not clean
        return {str(path): list(blobs) for path, blobs in paths.items()}

    def remember(self, behind: Behind) -> None:
        """Record the files that are still to be refreshed."""
        if behind:
            atomic_write(self.record, json.dumps({"format": 1, "paths": behind}))
        else:
            self.record.unlink(missing_ok=True)


@contextmanager
def locked_index(index: Path) -> Iterator[bool]:
    """Hold `index.lock` as git does; yield False if another git command keeps it for longer than `LOCK_WAIT_S`.

    The lock of a harness that was killed is recognised by its text and removed.
    """
    lock = index.with_name(f"{index.name}.lock")
    own_file = lock.with_name(f"{lock.name}.{secrets.token_hex(6)}")
    deadline = time.monotonic() + LOCK_WAIT_S
    own_file.write_text(f"{_LOCK_TEXT} {os.getpid()} {start_ticks(os.getpid())}\n")
    try:
        # A hard link appears together with its content: a lock of the harness never lacks its text.
        while not (is_locked := _linked(own_file, lock)):
            if not _remove_dead(lock):
                if time.monotonic() >= deadline:
                    break
                time.sleep(_LOCK_POLL_S)
        try:
            failpoint("checkout.index_locked")
            yield is_locked
        finally:
            if is_locked:
                lock.unlink(missing_ok=True)
    finally:
        own_file.unlink(missing_ok=True)


def _linked(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return False
    return True


def _remove_dead(lock: Path) -> bool:
    """Remove a lock whose harness process has ended; return whether there is no such lock."""
    try:
        text = lock.read_bytes()[:200].decode(errors="replace").split()
    except FileNotFoundError:
        return True
    if len(text) != 3 or text[0] != _LOCK_TEXT or not text[1].isdigit() or str(start_ticks(int(text[1]))) == text[2]:
        return False
    lock.unlink(missing_ok=True)
    return True


def refresh(checkout: Checkout, tip: str, scratch: Path) -> None:
    """Update the index and the files of the recorded paths to `tip`. The caller holds the index' lock.

    A path whose index entry a person changed is not touched. If a person changed its file, the file stays. Both remain
    recorded.

    Args:
        checkout: the checkout, on the branch whose tip is `tip`.
        scratch: a directory for the new index while it is made.
    """
    behind = checkout.behind()
    if not behind:
        return
    tip_entries, present = tree_entries(checkout.git, tip), _index_entries(checkout.git)
    remaining: Behind = {}
    changed: dict[str, tuple[str, str] | None] = {}
    sparse: list[str] = []
    for path, former in behind.items():
        tip_entry, index_entry = tip_entries.get(path), present.get(path, _NO_ENTRY)
        replaceable: set[Blob] = {*former, tip_entry[1] if tip_entry else None}
        file_blobs = _contents(checkout.root / path)
        if path.startswith(f"{LEDGER}/") and not (index_entry.blob in replaceable and file_blobs & replaceable):
            replaceable |= _once_held(checkout.git, tip, path)
        if index_entry.mode == "unmerged" or index_entry.blob not in replaceable:
            remaining[path] = former
            continue
        changed[path] = tip_entry
        if index_entry.skipped:
            sparse.append(path)
        elif not _write_if_unedited(checkout.root / path, replaceable, tip_entry, checkout.git):
            remaining[path] = former
    failpoint("checkout.files_written")
    if changed:
        _replace_index(checkout, changed, sparse, scratch)
    failpoint("checkout.index_replaced")
    checkout.remember(remaining)


def _once_held(git: Git, tip: str, path: str) -> set[Blob]:
    """Return the contents that recent commits of a branch had at a path.

    Only the harness writes the ledger, so another state of it in the index or the checkout is no person's work. A
    `git stash` that raced with a commit left it, and the next `git commit` would remove entries.
    """
    changes = git.run(
        "log", f"--max-count={_HISTORY}", "--format=", "--raw", "--no-abbrev", "--no-renames", tip, "--", path
    )
    ids = [line.split(" ")[2:4] for line in changes.text.splitlines() if line.startswith(":")]
    return {None if set(blob) == {"0"} else blob for pair in ids for blob in pair}


@dataclass(frozen=True)
class _IndexEntry:
    mode: str | None
    blob: Blob
    skipped: bool


_NO_ENTRY = _IndexEntry(None, None, skipped=False)


def tree_entries(git: Git, commit: str, path: str = "") -> dict[str, tuple[str, str]]:
    """Return path -> (mode, blob) of every file below a directory of a commit, sorted by path.

    Args:
        commit: a commit id or another tree-ish.
        path: the directory, relative to the repository's root; "" is the root.
    """
    inside = ("--", f"{path.rstrip('/')}/") if path else ()
    entries = {}
    for line in git.run("ls-tree", "-r", "-z", "--full-tree", commit, *inside).text.split("\0"):
        head, tab, name = line.partition("\t")
        if tab:
            mode, _, blob = head.split(" ")
            entries[name] = (mode, blob)
    return entries


def _index_entries(git: Git) -> dict[str, _IndexEntry]:
    entries: dict[str, _IndexEntry] = {}
    for line in git.run("ls-files", "-z", "-t", "--stage").text.split("\0"):
        head, tab, path = line.partition("\t")
        if tab:
            tag, mode, blob, stage = head.split(" ")
            entries[path] = _IndexEntry("unmerged" if stage != "0" else mode, blob, skipped=tag == "S")
    return entries


def _write_if_unedited(file: Path, replaceable: set[Blob], tip_entry: tuple[str, str] | None, git: Git) -> bool:
    """Write (or remove) a file unless a person changed it; return whether it now has the tip's content."""
    tip_blob = tip_entry[1] if tip_entry else None
    try:
        ids = _contents(file)
        if tip_blob in ids:
            return True
        if not ids & replaceable:
            return False
        if tip_entry is None:
            file.unlink(missing_ok=True)
            return True
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name[:200]}.{secrets.token_hex(6)}.tmp")
        try:
            temporary.write_bytes(git.run("cat-file", "blob", tip_entry[1]).stdout)
            if tip_entry[0] == "100755":
                temporary.chmod(temporary.stat().st_mode | 0o111)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return False  # a directory in the way, or not writable: the file stays on the record and `status` names it
    return True


def _contents(file: Path) -> set[Blob]:
    """Return the blob ids of a file's content: as it is, and with line ends as git stores them."""
    if file.is_symlink():
        return {blob_id(os.fsencode(file.readlink())).hex()}
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {None}
    return {blob_id(data).hex(), blob_id(data.replace(b"\r\n", b"\n")).hex()}


def is_edited(checkout: Checkout, branch: str, path: str, blob: Blob) -> bool:
    """Return whether a file of the checkout of a branch has content that neither the branch nor the harness put there.

    Args:
        checkout: the checkout; one of another branch counts as not edited.
    """
    if checkout.branch() != branch:
        return False
    file_blobs = _contents(checkout.root / path)
    return file_blobs != {None} and not file_blobs & {blob, *checkout.behind().get(path, [])}


def index_lines(entries: Mapping[str, tuple[str, str] | None]) -> bytes:
    """Return the input of `git update-index -z --index-info`; an entry (mode, blob id) of None removes its path."""
    lines = ("{} {}\t{}".format(*(entry or ("0", "0" * 40)), path) for path, entry in entries.items())
    return "".join(f"{line}\0" for line in lines).encode(errors="surrogateescape")


def _replace_index(
    checkout: Checkout, changed: Mapping[str, tuple[str, str] | None], sparse: Sequence[str], scratch: Path
) -> None:
    private = scratch / f"index.{secrets.token_hex(6)}"
    git = replace(checkout.git, index_file=private)
    try:
        with suppress(FileNotFoundError):
            shutil.copyfile(checkout.index, private)
        git.run("update-index", "-z", "--index-info", stdin=index_lines(changed))
        if sparse:
            skipped = "".join(f"{path}\0" for path in sparse if changed[path]).encode(errors="surrogateescape")
            git.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=skipped)
        git.ask("update-index", "-q", "--really-refresh")  # a non-zero status only means that some files differ
        private.replace(checkout.index)
    except RepositoryError as error:
        message = f"the checkout's index cannot be refreshed: {error.message}"
        raise RepositoryError(message, where=error.where) from error
    finally:
        private.unlink(missing_ok=True)


@dataclass(frozen=True)
class LocalChange:
    """A file of the checkout that differs from the branch's tip."""

    path: str
    kind: ChangeKind


def local_changes(checkout: Checkout, tip: str, directory: str) -> list[LocalChange]:
    """Return the changes of a person below a directory of the checkout, in the index or the files, since `tip`.

    A file that the harness has still to refresh is not a change, and neither is a temporary file of a refresh that was
    killed.

    Args:
        checkout: the checkout, on the branch whose tip is `tip`.
        directory: relative to the checkout's root, with a slash at its end.
    """
    tip_entries, index_entries = tree_entries(checkout.git, tip, directory), _index_entries(checkout.git)
    untracked = checkout.git.run("ls-files", "-z", "--others", "--exclude-standard", "--", f":(top){directory}").text
    names = {*tip_entries, *index_entries, *untracked.split("\0")}
    paths = sorted(name for name in names if name.startswith(directory) and not _TEMPORARY.search(name))
    behind = checkout.behind()
    changes = []
    for path in paths:
        tip_blob = tip_entries[path][1] if path in tip_entries else None
        entry = index_entries.get(path, _NO_ENTRY)
        expected = {tip_blob, *behind[path], *_once_held(checkout.git, tip, path)} if path in behind else {tip_blob}
        kind = _change_of(checkout.root / path, tip_blob, entry, expected)
        if kind is not None:
            changes.append(LocalChange(path, kind))
    return changes


def _change_of(file: Path, tip_blob: Blob, entry: _IndexEntry, expected: set[Blob]) -> ChangeKind | None:
    """Return the kind of difference between a file and the tip's blob; None if index and file are as `expected`."""
    if entry.mode == "unmerged":
        return "in conflict"
    if entry.blob not in expected:
        return "deleted" if entry.blob is None else "staged"
    try:
        file_blobs = _contents(file)
    except OSError:  # a directory in its place, or not readable
        return "modified"
    if file_blobs & expected or (entry.skipped and file_blobs == {None}):
        return None
    if file_blobs == {None}:
        return "deleted"
    return "untracked" if tip_blob is None and entry.blob is None else "modified"


def state(checkout: Checkout, branch: str, tip: str) -> list[str]:
    """Return a sentence for each part of `tip` that the checkout lacks, with the command that fixes it.

    Args:
        checkout: the checkout; one of another branch lacks nothing.
        branch: the branch's short name.
    """
    behind = checkout.behind()
    if not behind or checkout.branch() != branch:
        return []
    tip_entries, index_entries = tree_entries(checkout.git, tip), _index_entries(checkout.git)
    edited: list[str] = []
    stale: list[str] = []
    for path, former in behind.items():
        tip_blob = tip_entries[path][1] if path in tip_entries else None
        ids, index_blob = _contents(checkout.root / path), index_entries.get(path, _NO_ENTRY).blob
        if tip_blob in ids and index_blob == tip_blob:
            continue
        (stale if (ids & {tip_blob, *former}) and index_blob in {tip_blob, *former} else edited).append(path)
    sentences = []
    if edited:
        sentences.append(
            f"{first_names(edited, _SHOWN)}: changed in {checkout.root} by a person, so kept; {branch} has a newer "
            f"version. See both with `git diff HEAD`; take {branch}'s with `git checkout HEAD -- {shlex.join(edited)}`."
        )
    if stale:
        sentences.append(
            f"{first_names(stale, _SHOWN)}: {checkout.root} shows an older version than {branch}, because its index "
            f"was locked (or the harness was killed). The next commit of the harness updates it, or "
            f"`git checkout HEAD -- {shlex.join(stale)}`. If no git command runs, remove {checkout.index}.lock first."
        )
    return sentences
