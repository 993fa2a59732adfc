"""Answers become entries, and none is lost: what the ledger cannot take now is held and tried again."""

from __future__ import annotations

import logging
import threading
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
    """Writes entries and outcomes. While anything is held nothing further should be judged.

    All methods are for one thread; commits of the ledger run in another.
    """

    def __init__(self, workspace: Workspace, ledger: Ledger, status: StatusWriter) -> None:
        self._workspace = workspace
        self._ledger = ledger
        self._status = status
        self._held: deque[tuple[EntryDraft, Then]] = deque()
        self.entered = 0
        """Entries that this object has written."""
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = 0.0
        self._flush_at = 0.0
        self._unflushed = True  # what an earlier invocation left in the spool
        self._checkout_due = False
        self._thread: threading.Thread | None = None
        self._failed: tuple[bool, Exception] | None = None
        """Whether the thread was to commit, and what prevented it."""

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
            self.entered += 1
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

    def refresh_checkout(self) -> None:
        """With the next commit, or now, bring the checkout up to what an earlier commit had to leave."""
        self._checkout_due = True

    def flush(self, *, force: bool = False) -> None:
        """Commit the spool when it is due, in a thread of its own; with `force` now, and wait for it.

        A commit writes each ledger file whole and takes seconds, in which the judges go on. One that fails is reported
        and tried again; the spool keeps everything.
        """
        if not force and self._thread is not None and self._thread.is_alive():
            return
        self._take_result()
        if force:
            self._ledger.flush(force=True)
            self._unflushed = False
            return
        due = self._unflushed and self._ledger.is_flush_due and time.monotonic() >= self._flush_at
        if due or self._checkout_due:
            self._unflushed = self._unflushed and not due  # entries that come from now on are for the next commit
            self._thread = threading.Thread(target=self._commit, args=(due, self._checkout_due), name="ledger-commit")
            self._checkout_due = False
            self._thread.start()

    def close(self) -> None:
        """Wait for a commit that is under way."""
        if self._thread is not None:
            self._thread.join()

    def _commit(self, due: bool, checkout_due: bool) -> None:
        try:
            if checkout_due:
                self._ledger.refresh_checkout()
            if due:
                self._ledger.flush()
        except (HarnessError, OSError) as error:
            self._failed = due, error

    def _take_result(self) -> None:
        """Join the thread of the last commit, and report what kept it from committing."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        failed, self._failed = self._failed, None
        if failed is None:
            self._status.over(_WAITING)
            return
        self._unflushed |= failed[0]
        self._flush_at = time.monotonic() + LONGEST_PAUSE_S
        self._status.trouble(_WAITING, failed[1])
