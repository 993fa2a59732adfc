"""Work whose judge was lost, or whose answer does not count: it is tried again, until that counts against it."""

from __future__ import annotations

import logging

from harness.daemon.attempts import MOST, Attempts, Loss
from harness.daemon.dispatch import Work
from harness.daemon.postponed import PostponedWork
from harness.daemon.queue import EvaluationQueue
from harness.errors import HarnessError
from harness.model.judging import JudgeAnswer
from harness.workspace.judge_client import JudgeLost

logger = logging.getLogger(__name__)


class LostWork:
    """Puts lost work back where it waits, and counts losses. One thread.

    Args:
        queue: where jobs wait.
        attempts: losses of each measurement, on disk.
        postponed: measurements that wait after a fault of this machine.
    """

    def __init__(self, queue: EvaluationQueue, attempts: Attempts, postponed: PostponedWork) -> None:
        self._queue, self._attempts, self._postponed = queue, attempts, postponed

    def judge_lost(self, work: Work, lost: JudgeLost) -> None:
        """Count a loss against what was being judged, unless this machine is to blame: then it waits."""
        of_host = lost.cause in {"host", "memory"}
        if of_host and not (self._postponed.postpone(work.identity) and lost.cause == "memory"):
            if not work.is_baseline:
                self._queue.put_last(work.job)
            return
        self.put_back(work, Loss(how="deadline" if lost.cause == "deadline" else "ended", reason=lost.reason))

    def put_back(self, work: Work, loss: Loss) -> None:
        """Count a loss, and let the job wait for a judge again."""
        if not work.is_baseline:
            self._queue.put_back(work.job)
        self._count(work, loss)

    def baseline_failed(self, work: Work, answer: JudgeAnswer) -> bool:
        """Count a failure; true if the baseline is measured once more, since its entry would refuse every candidate."""
        self._count(work, Loss(how="ended", reason=answer.reason or answer.verdict))
        return len(self._attempts.losses(work.identity)) < MOST

    def _count(self, work: Work, loss: Loss) -> None:
        try:
            self._attempts.lost(work.identity, loss)
        except HarnessError as error:
            logger.warning("a lost judge could not be recorded: %s", error)
