"""What an agent wrote, taken over into the worktree: plain files only, read without ever following a link.

The directory that an agent may write is never the worktree's own, and is read here alone: whatever the agent does to
it at the same instant, what git, the checks and the judge see is a copy that only the harness writes.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from harness.errors import FormatError

_LARGEST = 16 << 20
_MOST = 1000
_DEEPEST = 8
_IGNORED = {"__pycache__", ".pytest_cache", ".git"}


@dataclass(frozen=True)
class _File:
    data: bytes
    executable: bool


def take_in(written: Path, destination: Path) -> None:
    """Make the files of `destination`, a directory of the harness, those that an agent wrote.

    Raises:
        FormatError: it left a link or a special file, too many files or too large ones; nothing was changed.
    """
    files = _read(written)
    destination.mkdir(parents=True, exist_ok=True)
    for there in sorted(destination.rglob("*"), reverse=True):
        name = there.relative_to(destination).as_posix()
        if there.is_dir() and not there.is_symlink():
            if not any(each.startswith(f"{name}/") for each in files):
                shutil.rmtree(there)
        elif name not in files:
            there.unlink()
    for name, file in files.items():
        path = destination / name
        if not path.is_file() or path.read_bytes() != file.data:
            if path.is_dir():
                shutil.rmtree(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        path.chmod(0o755 if file.executable else 0o644)


def lay_out(source: Path, written: Path) -> None:
    """Give an agent the files to begin with. Called while no agent runs there."""
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir(parents=True)
    if source.is_dir():
        take_in(source, written)


def _read(directory: Path) -> dict[str, _File]:
    files: dict[str, _File] = {}
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _walk(handle, "", files)
    finally:
        os.close(handle)
    return files


def _walk(directory: int, prefix: str, files: dict[str, _File]) -> None:
    for name in sorted(os.listdir(directory)):
        where = f"{prefix}{name}"
        if name in _IGNORED:
            continue
        if len(files) >= _MOST:
            raise FormatError(f"is one file too many: a solution has {_MOST} at most", where=where)
        if where.count("/") > _DEEPEST:
            raise FormatError(f"lies too deep: a solution has {_DEEPEST} levels of directories at most", where=where)
        try:
            kind = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
                raise FormatError("is a link or a special file; a solution has plain files only", where=where)
            # What is opened may be another thing than what was just looked at: hence the flags, and the second look.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(name, flags, dir_fd=directory)
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror}", where=where) from error
        try:
            found = os.fstat(handle)
            if stat.S_ISDIR(found.st_mode):
                _walk(handle, f"{where}/", files)
            elif stat.S_ISREG(found.st_mode):
                files[where] = _File(_content(handle, where, files), bool(found.st_mode & stat.S_IXUSR))
            else:
                raise FormatError("is a special file; a solution has plain files only", where=where)
        finally:
            os.close(handle)


def _content(handle: int, where: str, files: dict[str, _File]) -> bytes:
    left = _LARGEST - sum(len(file.data) for file in files.values())
    with os.fdopen(os.dup(handle), "rb") as file:
        data = file.read(left + 1)
    if len(data) > left:
        raise FormatError(f"makes the solution larger than {_LARGEST >> 20} MiB", where=where)
    return data
