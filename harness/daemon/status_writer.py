"""What the daemon is doing, for people to look at. Written to `.harness/live/daemon.json`, never read back."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence

from harness.daemon.queue import EvaluationQueue
from harness.errors import HarnessError
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import JudgeClient
from harness.workspace.status import write_live

logger = logging.getLogger(__name__)

_EVERY_S = 0.2
_MESSAGES = 20


class Display:
    """The daemon's state and last messages, written at most five times a second. One thread."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._written = ""
        self._next_at = 0.0

    def say(self, sentence: str) -> None:
        """Tell people: in the log and on the display. The same sentence again and again is said once."""
        if sentence not in self._messages:
            logger.warning("%s", sentence)
            self._messages.append(sentence)

    def trouble(self, what: str, error: Exception) -> None:
        """Tell people what does not work now, until `over`. While it lasts only its latest reason is shown."""
        before = [message for message in self._messages if message.startswith(what)]
        logger.log(logging.INFO if before else logging.WARNING, "%s: %s", what, error)
        self.over(what)
        self._messages.append(f"{what}: {error}")

    def over(self, what: str) -> None:
        """What was said with these words at its beginning holds no longer."""
        for message in [message for message in self._messages if message.startswith(what)]:
            self._messages.remove(message)

    def show(
        self,
        queue: EvaluationQueue,
        judges: Sequence[JudgeClient],
        workers: Mapping[str, str],
        *,
        evaluations_done: int,
        limit_reached: bool,
        force: bool = False,
    ) -> None:
        """Write the state when it has changed and it is time to; `workers` says whose candidate a device judges."""
        now = time.monotonic()
        if now < self._next_at and not force:
            return
        rows = [_row(judge, workers.get(judge.device)) for judge in judges]
        state = {
            "queued": len(queue),
            "current": next((row for row in rows if row["problem"]), None),
            "judges": rows,
            "evaluations_done": evaluations_done,
            "limit_reached": limit_reached,
            "messages": list(self._messages),
        }
        if repr(state) == self._written and not force:
            return
        self._written, self._next_at = repr(state), now + _EVERY_S
        with contextlib.suppress(HarnessError, OSError):  # a full disk is said where it matters
            write_live(self._workspace, "daemon", state)


def _row(judge: JudgeClient, worker: str | None) -> dict[str, object]:
    request, progress = judge.request, judge.progress
    return {
        "device": judge.device,
        "state": judge.state,
        "pid": judge.pid,
        "problem": request.problem if request else None,
        "kind": request.kind if request else None,
        "worker": worker,
        "stage": progress.stage if progress else None,
        "done": progress.done if progress else 0,
        "of": progress.of if progress else 0,
    }
