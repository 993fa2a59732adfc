"""Copies an agent's solution into the worktree: plain files only, without following links.

The agent writes to a directory outside the worktree, and only this module reads that directory. Git, the checks and the
judge therefore read a copy that only the harness writes, even if the agent changes its files at the same time.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from harness.errors import FormatError
from harness.workspace.files import replace_files

_MAX_BYTES = 16 << 20
_MAX_FILES = 1000
_MAX_DEPTH = 8
_IGNORED = {"__pycache__", ".pytest_cache", ".git"}


@dataclass(frozen=True)
class _File:
    data: bytes
    executable: bool


def sync_solution(source: Path, destination: Path) -> None:
    """Make the files of `destination` equal to those that an agent wrote to `source`.

    Args:
        source: the directory that the agent may write.
        destination: a directory that only the harness writes.

    Raises:
        FormatError: `source` has a link or a special file, too many or too large files; `destination` is unchanged.
    """
    files: dict[str, _File] = {}
    handle = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _walk(handle, "", files)
    finally:
        os.close(handle)
    replace_files(destination, {name: file.data for name, file in files.items()})
    for name, file in files.items():
        (destination / name).chmod(0o755 if file.executable else 0o644)


def replace_with_copy(source: Path, destination: Path) -> None:
    """Replace an agent's directory with a copy of a solution, before the agent starts.

    Args:
        source: the solution directory in the worktree; it may be missing.
        destination: the directory that the agent may write. No agent uses it during the call.
    """
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    if source.is_dir():
        sync_solution(source, destination)


def _walk(directory: int, prefix: str, files: dict[str, _File]) -> None:
    for name in sorted(os.listdir(directory)):
        where = f"{prefix}{name}"
        if name in _IGNORED:
            continue
        if len(files) >= _MAX_FILES:
            raise FormatError(f"exceeds the limit of {_MAX_FILES} files in a solution", where=where)
        if where.count("/") > _MAX_DEPTH:
            raise FormatError(f"exceeds the limit of {_MAX_DEPTH} directory levels in a solution", where=where)
        try:
            kind = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
                raise FormatError("is a link or a special file; a solution has plain files only", where=where)
            # The agent may replace the file between `stat` and `open`: the flags and `fstat` below detect that.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(name, flags, dir_fd=directory)
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror}", where=where) from error
        try:
            opened = os.fstat(handle)
            if stat.S_ISDIR(opened.st_mode):
                _walk(handle, f"{where}/", files)
            elif stat.S_ISREG(opened.st_mode):
                files[where] = _File(_content(handle, where, files), bool(opened.st_mode & stat.S_IXUSR))
            else:
                raise FormatError("is a special file; a solution has plain files only", where=where)
        finally:
            os.close(handle)


def _content(handle: int, where: str, files: dict[str, _File]) -> bytes:
    remaining_bytes = _MAX_BYTES - sum(len(file.data) for file in files.values())
    with os.fdopen(os.dup(handle), "rb") as file:
        data = file.read(remaining_bytes + 1)
    if len(data) > remaining_bytes:
        raise FormatError(f"makes the solution larger than {_MAX_BYTES >> 20} MiB", where=where)
    return data
