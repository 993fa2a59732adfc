"""Size limits of the files in `.harness/logs/`, and readers of their ends and of a growing file."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LOG_BYTES = 5_000_000
"""A larger log file is rotated."""
LOGS_KEPT = 3
"""Earlier files that are kept beside the current one: `.1` is the newest."""


def rotate(file: Path) -> None:
    """Rename a log file to `<name>.1`, `.1` to `.2` and so on, and delete the oldest. The file may be missing."""
    _make_room(file)
    with suppress(FileNotFoundError):
        file.replace(_earlier(file, 1))


def limit_size(file: Path, max_bytes: int = LOG_BYTES) -> bool:
    """Rotate a file of more than `max_bytes` that other processes have open for appending.

    The content is copied and the file truncated, because its writers keep the file open. Text written between the two
    steps is lost.

    Returns:
        True if the file was truncated.
    """
    with suppress(OSError):  # missing, or the disk is full: the next call tries again
        if file.stat().st_size > max_bytes:
            _make_room(file)
            shutil.copyfile(file, _earlier(file, 1))
            os.truncate(file, 0)
            return True
    return False


def _make_room(file: Path) -> None:
    for number in range(LOGS_KEPT - 1, 0, -1):
        with suppress(FileNotFoundError):
            _earlier(file, number).replace(_earlier(file, number + 1))


def _earlier(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")


def tail(file: Path, start: int, max_bytes: int) -> str:
    """Return the end of the text at or after byte `start`; "" if the file cannot be read.

    Args:
        start: offset of the first byte that is returned.
        max_bytes: the largest size that is returned.
    """
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(max(start, opened.seek(0, os.SEEK_END) - max_bytes))
        return opened.read().decode(errors="replace")
    return ""


class GrowingFile:
    """The lines that are appended to a text file, which may be truncated in the meantime.

    Args:
        file: may be missing.
        from_end: skip the present content.
    """

    def __init__(self, file: Path, *, from_end: bool = False) -> None:
        self._file = file
        self._offset = file.stat().st_size if from_end and file.exists() else 0
        self._partial_line = b""

    def new_lines(self, *, at_end: bool = False) -> list[str]:
        """Return the lines since the last call; with `at_end`, also a last line without a line feed."""
        with suppress(FileNotFoundError), self._file.open("rb") as opened:
            if opened.seek(0, os.SEEK_END) < self._offset:  # truncated: the whole content is new
                self._offset, self._partial_line = 0, b""
            opened.seek(self._offset)
            self._partial_line += opened.read()
            self._offset = opened.tell()
        complete, newline, self._partial_line = self._partial_line.rpartition(b"\n")
        parts = [complete] if newline else []
        if at_end and self._partial_line:
            parts, self._partial_line = [*parts, self._partial_line], b""
        return b"\n".join(parts).decode(errors="replace").split("\n") if parts else []
