"""Writer of the daemon's status record and of the messages in it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass

from harness.errors import HarnessError
from harness.model.process_status import DaemonStatus, JudgeStatus
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import JudgeClient
from harness.workspace.status import write_status

logger = logging.getLogger(__name__)

_EVERY_S = 0.2
_MESSAGES = 20
_PAUSED = "paused"


@dataclass(frozen=True)
class _Message:
    subject: str
    """Key of the messages that one event replaces or removes."""
    text: str


class StatusWriter:
    """The daemon's state and last messages, written at most five times a second. Not thread-safe."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._messages: deque[_Message] = deque(maxlen=_MESSAGES)
        self._last_status: DaemonStatus | None = None
        self._next_at = 0.0

    def add_message(self, text: str, *, subject: str = "") -> None:
        """Log a text and add it to the messages, unless they have it; `remove_messages(subject)` removes it."""
        message = _Message(subject or text, text)
        if message not in self._messages:
            logger.warning("%s", text)
            self._messages.append(message)

    def add_failure(self, operation: str, error: Exception) -> None:
        """Add a message about a failing operation, until `remove_messages(operation)`. Only its latest reason stays.

        Args:
            operation: the beginning and the subject of the message.
        """
        is_known = any(message.subject == operation for message in self._messages)
        logger.log(logging.INFO if is_known else logging.WARNING, "%s: %s", operation, error)
        self.remove_messages(operation)
        self._messages.append(_Message(operation, f"{operation}: {error}"))

    def _pause(self, reason: str | None) -> None:
        """Show the reason for a pause of judging, or remove it."""
        text = f"{_PAUSED}: {reason}; tried again until it works"
        if reason is None or _Message(_PAUSED, text) not in self._messages:
            self.remove_messages(_PAUSED)
        if reason is not None:
            self.add_message(text, subject=_PAUSED)

    def remove_messages(self, subject: str) -> None:
        """Remove the messages about a subject."""
        for message in [message for message in self._messages if message.subject == subject]:
            self._messages.remove(message)

    def write(self, status: DaemonStatus, *, force: bool = False) -> DaemonStatus | None:
        """Write the record with the messages, if it has changed and is due.

        Args:
            status: the present state, without the messages.

        Returns:
            The new record; None if none was due.
        """
        now_s = time.monotonic()
        if now_s < self._next_at and not force:
            return None
        self._pause(status.paused)
        status = status.model_copy(update={"messages": tuple(message.text for message in self._messages)})
        if status == self._last_status and not force:
            return None
        self._last_status, self._next_at = status, now_s + _EVERY_S
        with contextlib.suppress(HarnessError, OSError):  # a full disk is reported where entries are written
            write_status(self._workspace, status)
        return status


def judge_status(judge: JudgeClient, worker: str | None) -> JudgeStatus:
    """Return the state of a judge.

    Args:
        worker: the worker whose candidate it works on.
    """
    request, progress = judge.request, judge.progress
    return JudgeStatus(
        device=judge.device,
        state=judge.state,
        pid=judge.pid,
        became_ready=judge.became_ready,
        failure=judge.failure,
        problem=request.problem if request else None,
        kind=request.kind if request else None,
        worker=worker,
        stage=progress.stage if progress else None,
        done=progress.done if progress else 0,
        of=progress.of if progress else 0,
    )
