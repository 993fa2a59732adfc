"""Wakes its owner when files have changed. What it misses, the owner's periodic look finds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from watchdog.events import (
    DirCreatedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

QUIET_S = 0.05
"""Nothing has changed for so long: one commit or one append is a burst of events within a few milliseconds."""
LONGEST_S = 0.25
"""Files that keep changing wake the owner all the same after so long."""
_STOP_WITHIN_S = 0.2
"""How late a waiting owner sees that it is to stop: a signal handler can set a flag and nothing else."""

# Reading is not a change: opening and closing without writing are left out.
_CHANGES: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileClosedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
]


class Changes(FileSystemEventHandler):
    """Watches directories, and what is below them, from `with` to its end.

    Args:
        directories: made when they are missing, so that the first file in them is seen.
        nudge: set by others to wake the owner too, for example by a signal handler that sets a stop flag.
        matters: whether a changed file is worth waking for; asked in watchdog's thread.
    """

    def __init__(
        self,
        *directories: Path,
        nudge: threading.Event | None = None,
        matters: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        self._directories = directories
        self._changed = nudge or threading.Event()
        self._matters = matters
        self._observer = Observer()
        self._observer.name = "changes"

    def __enter__(self) -> Self:
        for directory in self._directories:
            directory.mkdir(parents=True, exist_ok=True)
            self._observer.schedule(self, str(directory), recursive=True, event_filter=_CHANGES)
        self._observer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._observer.stop()
        self._observer.join(timeout=5)

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Called by watchdog, in its thread."""
        if any(self._matters(Path(str(path))) for path in (event.src_path, event.dest_path) if path):
            self._changed.set()

    def wait(self, timeout_s: float, *, stop: threading.Event | None = None) -> bool:
        """Wait until something has changed and a moment has passed without more.

        False when nothing did within `timeout_s`, or when `stop` was set meanwhile.
        """
        until = time.monotonic() + timeout_s
        while not self._changed.wait(min(max(until - time.monotonic(), 0.0), _STOP_WITHIN_S if stop else timeout_s)):
            if time.monotonic() >= until or (stop and stop.is_set()):
                return False
        until = time.monotonic() + LONGEST_S
        self._changed.clear()
        while time.monotonic() < until and self._changed.wait(QUIET_S):
            self._changed.clear()
        return True
