"""Atomic writes and file locks, for files that several processes share."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import load_json_file
from harness.formats.schema import Model
from harness.workspace.processes import start_ticks

_LOCK_POLL_S = 0.01
# A process that was killed while it started another one leaves the lock to that child until the child has executed its
# program; on a host with a high load that took longer than the start of the next process.
_DEAD_HOLDER_S = 10.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write `path` so that a reader, or a crash at any instant, sees either the old or the new content.

    Missing directories are created. An existing file keeps its permissions.

    Args:
        data: the whole content; text is encoded as UTF-8.

    Raises:
        ConfigurationError: the file cannot be written (disk full, read-only ...); the old content is unchanged.
    """
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                with suppress(FileNotFoundError):
                    os.fchmod(descriptor, path.stat().st_mode & 0o7777)
                file.write(raw)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def replace_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make the files below a directory equal to `files`; equal files are not written, and no empty directory remains.

    Args:
        directory: created if missing.
        files: path in the directory -> content.

    Raises:
        ConfigurationError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted(directory.rglob("*"), reverse=True):  # the content of a directory before itself
        name = path.relative_to(directory).as_posix()
        if path.is_dir() and not path.is_symlink():
            if not any(file.startswith(f"{name}/") for file in files):
                path.rmdir()
        elif name not in files or path.is_symlink():
            path.unlink()
    for name, data in files.items():
        path = directory / name
        if not path.is_file() or path.read_bytes() != data:
            atomic_write(path, data)


def read_record(file: Path, model: type[Model]) -> Model | None:
    """Return the record in a JSON file; None if the file is missing, unreadable, or a record of another version."""
    try:
        return model.model_validate(load_json_file(file))
    except (OSError, FormatError, ValidationError):
        return None


def sync_directory(directory: Path) -> None:
    """Flush a directory to disk, so that renames and new files in it survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_older(files: Iterable[Path], age_s: float) -> None:
    """Remove files that were changed last more than `age_s` seconds ago.

    Args:
        files: the files; one that another process has removed is ignored.
        age_s: the least age in seconds.
    """
    oldest = time.time() - age_s
    for file in files:
        with suppress(FileNotFoundError):
            if file.stat().st_mtime < oldest:
                file.unlink()


def unwritable(path: Path, error: OSError) -> ConfigurationError:
    """Return the error for a failed write, with its fix.

    Args:
        path: the file or directory that could not be written.
    """
    remedy = "free some space on that disk" if error.errno in _NO_SPACE else "make it writable, then try again"
    return ConfigurationError(f"cannot be written: {error.strerror or error}", where=str(path), remedy=remedy)


@contextmanager
def file_lock(path: Path, *, wait_s: float | None = 0, owner: str = "") -> Iterator[None]:
    """Hold an exclusive lock on `path`, and write its holder into it. The kernel releases it when the process ends.

    Args:
        path: the lock file; created if missing and never removed.
        wait_s: time to wait for another holder, in seconds; None is no limit. If the recorded holder has ended,
            its lock is about to be released, and the wait is at least 10 s.
        owner: a description of the holder for the error message in other processes.

    Raises:
        ConfigurationError: another process, or another part of this one, holds it; the message names the holder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        if wait_s is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # a queue: a process that polls may starve beside frequent requests
        start = time.monotonic()
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            limit_s = max(wait_s or 0, _DEAD_HOLDER_S) if _has_ended(holder) else wait_s or 0
            if time.monotonic() - start >= limit_s:
                raise ConfigurationError(
                    f"held by {holder}", where=str(path), remedy="wait until that process has ended, or end it"
                )
            time.sleep(_LOCK_POLL_S)
        # The holder is information only: a full disk must not prevent locking.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}{f' ({owner})' if owner else ''}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _has_ended(holder: str) -> bool:
    """Return True if `holder`, the text in a lock file, names a process of this host that no longer runs."""
    match = re.match(r"pid (\d+)", holder)
    return match is not None and start_ticks(int(match[1])) is None
