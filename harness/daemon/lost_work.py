"""Work whose judge was lost, or whose answer does not count: it is tried again, until its losses give it a verdict."""

from __future__ import annotations

import logging

from harness.daemon.attempts import MAX_LOSSES, Attempts, Loss
from harness.daemon.dispatch import Work
from harness.daemon.postponed import PostponedWork
from harness.daemon.queue import EvaluationQueue
from harness.errors import HarnessError
from harness.model.judging import JudgeAnswer
from harness.workspace.judge_client import JudgeLost

logger = logging.getLogger(__name__)


class LostWork:
    """Puts lost work back into the queue, and counts losses. Not thread-safe.

    Args:
        queue: the waiting jobs.
        attempts: losses of each measurement, on disk.
        postponed: measurements that wait after a fault of this machine.
    """

    def __init__(self, queue: EvaluationQueue, attempts: Attempts, postponed: PostponedWork) -> None:
        self._queue, self._attempts, self._postponed = queue, attempts, postponed

    def judge_lost(self, work: Work, lost: JudgeLost) -> None:
        """Count a loss against a measurement, unless a fault of this machine caused it: then the measurement waits.

        Args:
            work: the measurement.
            lost: the loss of its judge.
        """
        of_host = lost.cause in {"host", "memory"}
        if of_host and not (self._postponed.postpone(work.identity) and lost.cause == "memory"):
            if not work.is_baseline:
                self._queue.put_last(work.job)
            return
        self.put_back(work, Loss(how="deadline" if lost.cause == "deadline" else "ended", reason=lost.reason))

    def put_back(self, work: Work, loss: Loss) -> None:
        """Count a loss, and put the job back into the queue.

        Args:
            work: the measurement.
            loss: the loss.
        """
        if not work.is_baseline:
            self._queue.put_back(work.job)
        self._count(work, loss)

    def baseline_failed(self, work: Work, answer: JudgeAnswer) -> bool:
        """Count a failure of a baseline, whose entry would refuse every candidate.

        Args:
            work: the measurement.
            answer: the judge's answer.

        Returns:
            True if the baseline is measured once more.
        """
        self._count(work, Loss(how="ended", reason=answer.reason or answer.verdict))
        return len(self._attempts.losses(work.identity)) < MAX_LOSSES

    def _count(self, work: Work, loss: Loss) -> None:
        try:
            self._attempts.lost(work.identity, loss)
        except HarnessError as error:
            logger.warning("a lost judge could not be recorded: %s", error)
