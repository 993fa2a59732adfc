"""Answers become entries, and none is lost: an answer that the ledger cannot take now waits for another attempt.

Steps follow from an entry: the worker's outcome, a confirmation, a champion.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from harness.daemon.attempts import Attempts
from harness.daemon.dispatch import baseline_identity, job_identity
from harness.daemon.drafts import champion_draft
from harness.daemon.queue import EvaluationQueue, Job, Key
from harness.daemon.status_writer import StatusWriter
from harness.errors import HarnessError, LedgerError
from harness.failpoints import failpoint
from harness.ledger.ledger import Ledger
from harness.model.entry import Entry, EntryDraft
from harness.workspace.crash_report import report_crash
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0

_HELD = "answers of judges cannot be entered into the ledger now; they are kept and tried again, judging pauses"
_WAITING = "entries cannot be committed now; they are safe in the spool, and the next attempt follows"

Then = Callable[[Entry], None]


class Recorder:
    """Writes entries and outcomes. While an answer waits, nothing further should be judged.

    All methods are for one thread; commits of the ledger run in another.
    """

    def __init__(self, workspace: Workspace, ledger: Ledger, status: StatusWriter) -> None:
        self._workspace = workspace
        self._ledger = ledger
        self._status = status
        self._unwritten: deque[tuple[EntryDraft, Then]] = deque()
        self.entered = 0
        """Entries that this object has written."""
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = 0.0
        self._flush_at = 0.0
        self._unflushed = True  # documents of an earlier invocation in the spool
        self._checkout_due = False
        self._thread: threading.Thread | None = None
        self._failed: tuple[bool, Exception] | None = None
        """(True if the thread was to commit, the error); the thread sets it to None when it succeeds."""

    @property
    def unwritten(self) -> int:
        """Number of answers that are not on disk yet."""
        return len(self._unwritten)

    def next_retry(self) -> float | None:
        """Return the monotonic time in seconds of the next action of `retry`; None if there is none."""
        return self._retry_at if self._unwritten else None

    def enter(self, draft: EntryDraft, then: Then) -> None:
        """Append a draft and call `then` with its entry: now, or as soon as the ledger can be written.

        Args:
            then: called with the entry after it is on disk.
        """
        self._unwritten.append((draft, then))
        self.retry(force=len(self._unwritten) == 1)

    def retry(self, *, force: bool = False) -> None:
        """Append the waiting answers, oldest first, if an attempt is due."""
        if not force and time.monotonic() < self._retry_at:
            return
        while self._unwritten:
            draft, then = self._unwritten[0]
            try:
                failpoint("daemon.before_entry")
                entry = self._ledger.append(draft)
            except (HarnessError, OSError) as error:
                self._status.add_failure(_HELD, error)
                self._retry_at = time.monotonic() + self._pause_s
                self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
                return
            failpoint("daemon.after_entry")
            self._unwritten.popleft()
            self.entered += 1
            self._status.remove_messages(_HELD)
            self._pause_s = FIRST_PAUSE_S
            self._unflushed = True
            then(entry)

    def write_outcome(self, entry: Entry) -> None:
        """Write an evaluation's entry for its worker. The file is derived: a failure costs the worker seconds."""
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
        """Refresh the files of the checkout that an earlier commit could not refresh, in the thread of commits."""
        self._checkout_due = True

    def flush(self, *, force: bool = False) -> None:
        """Commit the spool when it is due, in a thread of its own; with `force` now, and wait for it.

        A commit writes each ledger file whole and takes seconds, during which the judges continue. A failed commit is
        reported and tried again; the spool keeps every document.
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
            self._unflushed = self._unflushed and not due  # later entries belong to the next commit
            self._failed = due, LedgerError("the thread of the commit ended without a result")
            self._thread = threading.Thread(target=self._commit, args=(due, self._checkout_due), name="ledger-commit")
            self._checkout_due = False
            self._thread.start()

    def close(self) -> None:
        """Wait for a commit that is in progress."""
        if self._thread is not None:
            self._thread.join()

    def _commit(self, due: bool, checkout_due: bool) -> None:
        try:
            if checkout_due:
                self._ledger.refresh_checkout()
            if due:
                self._ledger.flush()
            self._failed = None
        except (HarnessError, OSError) as error:
            self._failed = due, error
        except Exception as error:  # noqa: BLE001 - a thread's border: the daemon reports it and commits again
            self._failed = due, LedgerError(report_crash(error))

    def _take_result(self) -> None:
        """Join the thread of the last commit, and report its error."""
        if self._thread is None:
            return
        self.close()
        self._thread, failed, self._failed = None, self._failed, None
        if failed is None:
            self._status.remove_messages(_WAITING)
            return
        self._unflushed |= failed[0]
        self._flush_at = time.monotonic() + LONGEST_PAUSE_S
        self._status.add_failure(_WAITING, failed[1])


@dataclass
class AfterEntry:
    """Tracks the jobs that entries end and the steps that they make due. Not thread-safe."""

    recorder: Recorder
    """Enters champions, and writes outcomes for workers."""
    queue: EvaluationQueue
    """Holds the entry's job, which was in flight."""
    attempts: Attempts
    """Losses of each measurement, which its entry deletes."""
    evaluations_done: int
    """Evaluations of the invocation that are entered."""
    index_is_behind: bool = False
    """True if entries were made since the caller last reset it."""
    _champions_entering: set[tuple[str, int]] = field(default_factory=set)
    _due: set[tuple[str, str]] = field(default_factory=set)

    @property
    def is_due(self) -> bool:
        """True if the next steps of an entry are still to be taken."""
        return bool(self._due)

    def take_due(self) -> Collection[tuple[str, str]]:
        """Return and clear the problems and targets of the entries whose next steps are due."""
        due, self._due = self._due, set()
        return due

    def baseline_entered(self, entry: Entry) -> None:
        """Process the entry of a problem's baselines, which is on disk."""
        failpoint("daemon.after_baseline")
        self.index_is_behind = True
        judge = entry.environment.judge if entry.environment else ""
        key = Key(entry.problem, entry.problem_digest, tree="", target=entry.target, judge=judge)
        self.attempts.forget(baseline_identity(key))

    def judged(self, job: Job, entry: Entry) -> None:
        """Process the entry of an evaluation or confirmation, which is on disk."""
        if job.kind == "evaluation":
            self.evaluations_done += 1
            self.recorder.write_outcome(entry)
        self.queue.finish(job)
        self.attempts.forget(job_identity(job))
        self._follow(job.key.problem, job.key.target)

    def record_champion(self, confirmation: Entry) -> None:
        """Enter the champion that a confirmation names, once."""
        if (confirmation.problem, confirmation.seq) in self._champions_entering:
            return  # its entry waits until the ledger can be written
        self._champions_entering.add((confirmation.problem, confirmation.seq))
        failpoint("daemon.before_champion")
        self.recorder.enter(champion_draft(confirmation), self._champion_entered)

    def _champion_entered(self, entry: Entry) -> None:
        failpoint("daemon.after_champion")
        self._follow(entry.problem, entry.target)

    def _follow(self, problem: str, target: str) -> None:
        self._due.add((problem, target))
        self.index_is_behind = True
