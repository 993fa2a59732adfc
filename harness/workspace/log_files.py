"""Size limits of the files in `.harness/logs/`, and reading one while it grows."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LOG_BYTES = 5_000_000
"""A log file that is larger is rotated."""
LOGS_KEPT = 3
"""Earlier files that are kept beside the current one: `.1` is the newest."""


def rotate(file: Path) -> None:
    """Rename a log file to `<name>.1`, and `.1` to `.2` and so on; the oldest is deleted. A missing file is fine."""
    _make_room(file)
    with suppress(FileNotFoundError):
        file.replace(_earlier(file, 1))


def limit_size(file: Path, most: int = LOG_BYTES) -> bool:
    """Rotate a file of more than `most` bytes that other processes have open for appending.

    The content is copied and the file truncated, because its writers keep the file open. Text written between the two
    is lost.

    Returns:
        True if the file was truncated.
    """
    with suppress(OSError):  # missing, or the disk is full: the next call tries again
        if file.stat().st_size > most:
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


class GrowingFile:
    """The lines that are appended to a text file, also one that is truncated meanwhile.

    Args:
        file: may be missing.
        from_end: skip what the file holds now.
    """

    def __init__(self, file: Path, *, from_end: bool = False) -> None:
        self._file = file
        self._offset = file.stat().st_size if from_end and file.exists() else 0
        self._rest = b""

    def new_lines(self, *, at_end: bool = False) -> list[str]:
        """Return the lines since the last call; with `at_end`, also a last line without a line feed."""
        with suppress(FileNotFoundError), self._file.open("rb") as opened:
            if opened.seek(0, os.SEEK_END) < self._offset:  # truncated: what is there now is all new
                self._offset, self._rest = 0, b""
            opened.seek(self._offset)
            self._rest += opened.read()
            self._offset = opened.tell()
        complete, newline, self._rest = self._rest.rpartition(b"\n")
        parts = [complete] if newline else []
        if at_end and self._rest:
            parts, self._rest = [*parts, self._rest], b""
        return b"\n".join(parts).decode(errors="replace").split("\n") if parts else []
