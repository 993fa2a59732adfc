"""Says that refs have moved, soon after they did. What it misses, the periodic comparison finds.

Loose refs appear as a lock file that is renamed, below directories that git makes and removes as it likes;
`git pack-refs` moves them into one file. So everything below `refs/` is watched, and `packed-refs` beside it,
and an event says no more than "look again".
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

QUIET_S = 0.04
"""Nothing has moved for so long: one commit makes a burst of events within a few milliseconds."""
LONGEST_S = 0.15
"""Refs that keep moving are looked at all the same after so long."""

# Reading refs must not be an event: opening and closing without writing are left out.
_CHANGES: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileClosedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]


class Debouncer:
    """Calls `callback` in a thread of its own once calls of `touch` have paused, or have gone on for long.

    Args:
        callback: called without arguments; must not raise.
        quiet_s: pause after the last touch.
        longest_s: most between the first touch and the callback.
    """

    def __init__(self, callback: Callable[[], None], *, quiet_s: float = QUIET_S, longest_s: float = LONGEST_S) -> None:
        self._callback = callback
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._changed = threading.Condition()
        self._first: float | None = None
        self._last = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="refs-debouncer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def touch(self) -> None:
        """Something has moved."""
        with self._changed:
            self._last = time.monotonic()
            if self._first is None:
                self._first = self._last
                self._changed.notify()

    def close(self) -> None:
        """Stop and join the thread; a pending call is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while self._due():
            self._callback()

    def _due(self) -> bool:
        """Wait until a call is due; False once closed."""
        with self._changed:
            while not self._closed:
                if self._first is None:
                    self._changed.wait()
                    continue
                now = time.monotonic()
                due = min(self._last + self._quiet_s, self._first + self._longest_s)
                if now >= due:
                    self._first = None
                    return True
                self._changed.wait(due - now)
        return False


class _Refs(FileSystemEventHandler):
    """Everything below refs/, and in the directory above only packed-refs."""

    def __init__(self, git_dir: Path, touch: Callable[[], None]) -> None:
        self._git_dir = str(git_dir)
        self._touch = touch

    def on_any_event(self, event: FileSystemEvent) -> None:
        for path in (event.src_path, event.dest_path):
            head, _, tail = str(path).rpartition("/")
            if path and (head != self._git_dir or tail.startswith("packed-refs")):
                self._touch()
                return


class RefWatcher:
    """Watches one repository's refs from `start` to `close`.

    Args:
        git_dir: the repository's common directory.
        changed: called, in another thread, soon after refs have moved; must not raise.
    """

    def __init__(self, git_dir: Path, changed: Callable[[], None]) -> None:
        self._git_dir = git_dir
        self._debouncer = Debouncer(changed)
        self._observer: BaseObserver | None = None

    def start(self) -> None:
        """Watch.

        Raises:
            OSError: the kernel gives no more watches (`fs.inotify.max_user_watches`, `max_user_instances`).
        """
        # watchdog 7 says this of a directory that appears while its parent is being read; it does no harm.
        warnings.filterwarnings("ignore", message="Callback with id", category=RuntimeWarning)
        handler = _Refs(self._git_dir, self._debouncer.touch)
        self._debouncer.start()
        observer = self._observer = Observer()  # some of its threads begin here: `close` ends them in any case
        observer.name = "refs-watcher"
        observer.schedule(handler, str(self._git_dir / "refs"), recursive=True, event_filter=_CHANGES)
        observer.schedule(handler, str(self._git_dir), recursive=False, event_filter=_CHANGES)
        observer.start()

    def close(self) -> None:
        """Stop watching and join every thread."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            if observer.ident is not None:
                observer.join(timeout=5)
        self._debouncer.close()
