"""File watches: `FileWatch` wakes the thread that waits for it, `RefWatch` calls back when refs of a repository moved.

A watch can miss events. Its owner therefore also checks for changes periodically.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

QUIET_S = 0.04
"""A burst ends after this time without an event: one commit or append makes its events within milliseconds."""
LONGEST_S = 0.15
"""Upper bound on a burst: files that change continuously are reported after this time."""
_STOP_POLL_S = 0.2
"""Interval at which a wait checks its stop flag: a signal handler can set a flag, but must not take a lock."""
_JOIN_S = 5.0

# Opening a file and closing it without writing are omitted: reading is not a change.
_EVENTS: list[type[events.FileSystemEvent]] = [
    events.FileCreatedEvent,
    events.FileClosedEvent,
    events.FileMovedEvent,
    events.FileDeletedEvent,
    events.DirCreatedEvent,
    events.DirMovedEvent,
    events.DirDeletedEvent,
]


class Debouncer:
    """Turns each burst of touches into one wake-up."""

    def __init__(self) -> None:
        self._touched = threading.Event()

    def touch(self) -> None:
        """Report a change, from any thread."""
        self._touched.set()

    def wait(self, timeout_s: float = threading.TIMEOUT_MAX, *, stop: threading.Event | None = None) -> bool:
        """Wait for a touch, and then for the end of its burst.

        Args:
            timeout_s: upper bound on the wait for the first touch, in seconds; by default none.
            stop: ends the wait for the first touch.

        Returns:
            False if there was no touch within `timeout_s`, or if `stop` was set before one.
        """
        until = time.monotonic() + timeout_s
        longest_s = timeout_s if stop is None else _STOP_POLL_S
        while not self._touched.wait(max(0.0, min(until - time.monotonic(), longest_s))):
            if time.monotonic() >= until or (stop and stop.is_set()):
                return False
        until = time.monotonic() + LONGEST_S
        self._touched.clear()
        while (remaining_s := until - time.monotonic()) > 0 and self._touched.wait(min(QUIET_S, remaining_s)):
            self._touched.clear()
        return True


class _Observation(events.FileSystemEventHandler):
    """Events of directories, from `start` to `close`.

    Args:
        name: name of watchdog's thread.
        directories: directory -> True to watch everything below it too.
        matters: returns whether a changed path is reported; called in watchdog's thread.
        changed: called in watchdog's thread.
    """

    def __init__(
        self, name: str, directories: Mapping[Path, bool], matters: Callable[[Path], bool], changed: Callable[[], None]
    ) -> None:
        self._name, self._directories, self._matters, self._changed = name, directories, matters, changed
        self._observer: BaseObserver | None = None

    def start(self) -> None:
        # watchdog 7 warns of a directory that appears while it reads the parent; this is harmless.
        warnings.filterwarnings("ignore", message="Callback with id", category=RuntimeWarning)
        observer = self._observer = Observer()  # `schedule` starts threads, which `close` ends in any case
        observer.name = self._name
        for directory, recursive in self._directories.items():
            observer.schedule(self, str(directory), recursive=recursive, event_filter=_EVENTS)
        observer.start()

    def close(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            if observer.ident is not None:
                observer.join(timeout=_JOIN_S)

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        if any(self._matters(Path(str(path))) for path in (event.src_path, event.dest_path) if path):
            self._changed()


class FileWatch(Debouncer):
    """Watches directories and everything below them, within a `with` block: each change is a touch.

    Args:
        directories: created if missing, so that the first file in them is detected.
        matters: returns whether a changed file wakes the owner; called in watchdog's thread.
    """

    def __init__(self, *directories: Path, matters: Callable[[Path], bool] = lambda _: True) -> None:
        super().__init__()
        self._directories = directories
        self._observation = _Observation("file-watch", dict.fromkeys(directories, True), matters, self.touch)

    def __enter__(self) -> Self:
        for directory in self._directories:
            directory.mkdir(parents=True, exist_ok=True)
        try:
            self._observation.start()
        except BaseException:
            self._observation.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._observation.close()


class RefWatch:
    """Calls back, in a thread of its own, after refs of a repository have moved; from `start` to `close`.

    Git writes a loose ref as a lock file that it renames, in directories that it creates and removes, and `git
    pack-refs` moves refs into one file. So the watch covers everything below `refs/` and the file `packed-refs`, and
    the callback does not report which ref moved.

    Args:
        changed: called without arguments; must not raise.
    """

    def __init__(self, git_dir: Path, changed: Callable[[], None]) -> None:
        self._git_dir, self._changed = git_dir, changed
        self._debouncer = Debouncer()
        self._observation = _Observation(
            "ref-watch", {git_dir / "refs": True, git_dir: False}, self._is_ref, self._debouncer.touch
        )
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ref-watch-callback", daemon=True)

    def start(self) -> None:
        """Start watching.

        Raises:
            OSError: the kernel's limit of watches is reached (`fs.inotify.max_user_watches`, `max_user_instances`).
        """
        self._thread.start()
        self._observation.start()

    def close(self) -> None:
        """Stop watching and join every thread; a pending call is dropped."""
        self._observation.close()
        self._closed = True
        self._debouncer.touch()
        if self._thread.ident is not None:
            self._thread.join(timeout=_JOIN_S)

    def _is_ref(self, path: Path) -> bool:
        return path.parent != self._git_dir or path.name.startswith("packed-refs")

    def _run(self) -> None:
        while self._debouncer.wait() and not self._closed:
            self._changed()
