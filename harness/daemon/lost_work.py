"""Work whose judge was lost, or whose answer does not count: it is tried again, until its losses give it a verdict.

After a fault of this machine, the same measurement is tried again after a growing pause. Pauses are in memory only:
after a restart everything is tried immediately. A fault of the machine is never a candidate's verdict. There is one
exception, for memory and processes of candidates without limits. A candidate that runs out of them repeatedly, while
others are judged in between, is the cause.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.daemon.attempts import MAX_LOSSES, Attempts, Loss
from harness.daemon.dispatch import Work
from harness.daemon.queue import EvaluationQueue
from harness.errors import HarnessError
from harness.model.judging import JudgeAnswer
from harness.workspace.judge_client import JudgeLost

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_MOST_ALONE = 3
"""Faults of missing memory, with answers to other requests between them, that count against the measurement."""


@dataclass
class _Postponed:
    until_s: float
    """End of the pause on the monotonic clock."""
    pause_s: float
    answers_before: int
    """Answers about other measurements before its last fault."""
    faults_alone: int = 0
    """Faults with answers about other measurements between them."""


class PostponedWork:
    """Measurements that wait, by their identity. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], _Postponed] = {}
        self._answers = 0

    def postpone(self, identity: Sequence[str]) -> bool:
        """Make a measurement wait, for a longer pause each time.

        Returns:
            True if only this measurement has the fault: others were answered between its last faults.
        """
        present_s, key = time.monotonic(), tuple(identity)
        entry = self._waiting.get(key)
        if entry is None:
            self._waiting[key] = _Postponed(present_s + FIRST_PAUSE_S, FIRST_PAUSE_S, self._answers)
            return False
        entry.faults_alone += self._answers > entry.answers_before
        entry.pause_s = min(2 * entry.pause_s, LONGEST_PAUSE_S)
        entry.until_s, entry.answers_before = present_s + entry.pause_s, self._answers
        return entry.faults_alone >= _MOST_ALONE

    def waits(self, identity: Sequence[str]) -> bool:
        """Return whether a measurement's pause continues."""
        entry = self._waiting.get(tuple(identity))
        return entry is not None and time.monotonic() < entry.until_s

    def count_answer(self, identity: Sequence[str]) -> None:
        """Remove a measurement that a judge has answered."""
        self._answers += 1
        self._waiting.pop(tuple(identity), None)


class LostWork:
    """Puts lost work back into the queue, and counts losses. Not thread-safe.

    Args:
        attempts: losses of each measurement, on disk.
        postponed: measurements that wait after a fault of this machine.
    """

    def __init__(self, queue: EvaluationQueue, attempts: Attempts, postponed: PostponedWork) -> None:
        self._queue, self._attempts, self._postponed = queue, attempts, postponed

    def judge_lost(self, work: Work, lost: JudgeLost) -> None:
        """Count a loss against a measurement, unless a fault of this machine caused it: then the measurement waits."""
        of_host = lost.cause in {"host", "memory"}
        if of_host and not (self._postponed.postpone(work.identity) and lost.cause == "memory"):
            if not work.is_baseline:
                self._queue.put_back(work.job, last=True)
            return
        self.put_back(work, Loss(cause="deadline" if lost.cause == "deadline" else "ended", reason=lost.reason))

    def put_back(self, work: Work, loss: Loss) -> None:
        """Count a loss, and put the job back into the queue."""
        if not work.is_baseline:
            self._queue.put_back(work.job)
        self._count(work, loss)

    def baseline_failed(self, work: Work, answer: JudgeAnswer) -> bool:
        """Count a failure of a baseline, whose entry would refuse every candidate.

        Returns:
            True if the baseline is measured once more.
        """
        self._count(work, Loss(cause="ended", reason=answer.reason or answer.verdict))
        return len(self._attempts.losses(work.identity)) < MAX_LOSSES

    def _count(self, work: Work, loss: Loss) -> None:
        try:
            self._attempts.lost(work.identity, loss)
        except HarnessError as error:
            logger.warning("a lost judge could not be recorded: %s", error)
