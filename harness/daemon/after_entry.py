"""Steps that follow from an entry: the worker's outcome, a confirmation, a champion."""

from __future__ import annotations

from collections.abc import Callable, Collection

from harness.daemon.attempts import Attempts
from harness.daemon.dispatch import baseline_identity, job_identity
from harness.daemon.drafts import champion_draft
from harness.daemon.queue import EvaluationQueue, Job
from harness.daemon.recorder import Recorder
from harness.failpoints import failpoint
from harness.model.entry import Entry


class AfterEntry:
    """Tracks the jobs that entries end and the steps that they make due. Not thread-safe.

    Args:
        recorder: enters champions, and writes outcomes for workers.
        queue: holds the entry's job, which was in flight.
        attempts: losses of each measurement, which its entry deletes.
        index_is_behind: called when the index lacks an entry.
        evaluations_done: evaluations of the invocation that are already entered.
    """

    def __init__(
        self,
        recorder: Recorder,
        queue: EvaluationQueue,
        attempts: Attempts,
        index_is_behind: Callable[[], None],
        evaluations_done: int,
    ) -> None:
        self._recorder, self._queue, self._attempts = recorder, queue, attempts
        self._index_is_behind = index_is_behind
        self.evaluations_done = evaluations_done
        self._champions_entering: set[tuple[str, int]] = set()
        self._due: set[tuple[str, str]] = set()

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
        self._index_is_behind()
        judge = entry.environment.judge if entry.environment else ""
        self._attempts.forget(baseline_identity(entry.problem, entry.problem_digest, entry.target, judge))

    def judged(self, job: Job, entry: Entry) -> None:
        """Process the entry of an evaluation or confirmation, which is on disk.

        Args:
            job: the entry's job.
            entry: the entry.
        """
        if job.kind == "evaluation":
            self.evaluations_done += 1
            self._recorder.write_outcome(entry)
        self._queue.finish(job)
        self._attempts.forget(job_identity(job))
        self._follow(job.key.problem, job.key.target)

    def record_champion(self, confirmation: Entry) -> None:
        """Enter the champion that a confirmation names, once."""
        if (confirmation.problem, confirmation.seq) in self._champions_entering:
            return  # its entry waits until the ledger can be written
        self._champions_entering.add((confirmation.problem, confirmation.seq))
        failpoint("daemon.before_champion")
        self._recorder.enter(champion_draft(confirmation), self._champion_entered)

    def _champion_entered(self, entry: Entry) -> None:
        failpoint("daemon.after_champion")
        self._follow(entry.problem, entry.target)

    def _follow(self, problem: str, target: str) -> None:
        self._due.add((problem, target))
        self._index_is_behind()
