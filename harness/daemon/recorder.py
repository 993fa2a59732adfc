"""Answers become entries, and none is lost: what the ledger cannot take now is held and tried again."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from harness.daemon.status_writer import StatusWriter
from harness.errors import HarnessError
from harness.failpoints import failpoint
from harness.ledger.ledger import Ledger
from harness.model.entry import Entry, EntryDraft
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0

_HELD = "what was judged cannot be entered into the ledger now; it is kept and tried again, nothing new is judged"
_WAITING = "entries cannot be committed now; they are safe in the spool, and the next attempt follows"

Then = Callable[[Entry], None]


class Recorder:
    """Writes entries and outcomes. While anything is held nothing further should be judged. One thread."""

    def __init__(self, workspace: Workspace, ledger: Ledger, status: StatusWriter) -> None:
        self._workspace = workspace
        self._ledger = ledger
        self._status = status
        self._held: deque[tuple[EntryDraft, Then]] = deque()
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = 0.0
        self._flush_at = 0.0
        self._unflushed = True  # what an earlier invocation left in the spool

    @property
    def held(self) -> int:
        """Answers that are not on disk yet."""
        return len(self._held)

    def next_retry(self) -> float | None:
        """When `retry` has something to do, on the monotonic clock."""
        return self._retry_at if self._held else None

    def enter(self, draft: EntryDraft, then: Then) -> None:
        """Append a draft and call `then` with its entry: now, or as soon as the ledger can be written."""
        self._held.append((draft, then))
        self.retry(force=len(self._held) == 1)

    def retry(self, *, force: bool = False) -> None:
        """Append what is held, oldest first, when it is time to."""
        if not force and time.monotonic() < self._retry_at:
            return
        while self._held:
            draft, then = self._held[0]
            try:
                failpoint("daemon.before_entry")
                entry = self._ledger.append(draft)
            except (HarnessError, OSError) as error:
                self._status.trouble(_HELD, error)
                self._retry_at = time.monotonic() + self._pause_s
                self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
                return
            failpoint("daemon.after_entry")
            self._held.popleft()
            self._status.over(_HELD)
            self._pause_s = FIRST_PAUSE_S
            self._unflushed = True
            then(entry)

    def leave_outcome(self, entry: Entry) -> None:
        """Put an evaluation's entry where the worker that waits for it looks. Derived: a failure costs it seconds."""
        if entry.candidate is None:
            return
        file = self._workspace.outcome_file(entry.problem, entry.target, entry.candidate.tree)
        try:
            failpoint("daemon.before_outcome")
            atomic_write(file, entry.model_dump_json())
            failpoint("daemon.after_outcome")
        except HarnessError as error:
            logger.warning("no outcome file: %s", error)

    def flush(self, *, force: bool = False) -> None:
        """Commit the spool when it is due. A commit that fails is said and tried again; the spool keeps everything."""
        if not self._unflushed or (not force and time.monotonic() < self._flush_at):
            return
        try:
            committed = self._ledger.flush(force=force)
        except (HarnessError, OSError) as error:
            self._flush_at = time.monotonic() + LONGEST_PAUSE_S
            if force:
                raise
            self._status.trouble(_WAITING, error)
            return
        self._status.over(_WAITING)
        self._flush_at = time.monotonic() + 1.0
        if committed:
            self._unflushed = False
