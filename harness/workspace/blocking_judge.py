"""A judge process for the duration of one command: the caller waits for each answer."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from harness.errors import ConfigurationError
from harness.model.config import SandboxKind
from harness.model.judging import CheckAnswer, CheckRequest, JudgeAnswer, JudgeProgress, JudgeReady, JudgeRequest
from harness.workspace.judge_client import CheckAnswered, JudgeClient, JudgeLost, RequestAnswered, judge_command
from harness.workspace.judge_endpoint import JudgeNotice

_END_S = 20.0
"""A judge that has not ended this long after SIGTERM is killed."""


class JudgeProcess:
    """One judge on one device. A judge that ends is not started again.

    Args:
        cache: the directory of the judge's build artefacts and snapshots.

    Raises:
        ConfigurationError: the judge does not become ready; the message is the judge's own if it wrote one.
    """

    def __init__(self, device: str, cache: Path, sandbox: SandboxKind) -> None:
        self._notices: queue.SimpleQueue[JudgeNotice] = queue.SimpleQueue()
        self._log = tempfile.TemporaryDirectory(prefix="kernel-harness-")
        command = judge_command(device, cache, sandbox)
        self._client = JudgeClient(device, command, Path(self._log.name) / "judge.log", self._notices.put)
        try:
            self._client.start()
            event = self._next()
        except BaseException:
            self.close()
            raise
        pid = self._client.pid
        assert isinstance(event, JudgeReady)  # noqa: S101 - no other event precedes a request
        assert pid is not None  # noqa: S101 - the process has just reported that it is ready
        self.ready, self.pid = event, pid

    def ask(
        self,
        request: JudgeRequest,
        progress: Callable[[JudgeProgress], None],
        checked: Callable[[CheckAnswer], None] = lambda _: None,
    ) -> JudgeAnswer:
        """Send a request and wait for its answer; checks are answered in the meantime.

        Args:
            checked: called with each answer to a check.

        Raises:
            ConfigurationError: the judge ended, or exceeded the request's deadline, instead of answering.
        """
        self._client.ask(request)
        while True:
            event = self._next()
            if isinstance(event, RequestAnswered):
                return event.answer
            if isinstance(event, JudgeProgress):
                progress(event)
            if isinstance(event, CheckAnswered):
                checked(event.answer)

    def check(self, request: CheckRequest) -> CheckAnswer:
        """Send a check to the idle judge and wait for its answer.

        Raises:
            ConfigurationError: the judge ended instead of answering.
        """
        self.send_check(request)
        return self.next_checked()

    def send_check(self, request: CheckRequest) -> None:
        """Send a check. `ask` passes its answer to `checked`, or `next_checked` returns it."""
        self._client.ask_check(request)

    def next_checked(self) -> CheckAnswer:
        """Wait for the next answer to a check.

        Raises:
            ConfigurationError: the judge ended instead of answering.
        """
        while True:
            event = self._next()
            if isinstance(event, CheckAnswered):
                return event.answer

    def close(self) -> None:
        """End the process and its group."""
        self._client.close(grace_s=_END_S)
        self._log.cleanup()

    def _next(self) -> JudgeReady | JudgeProgress | RequestAnswered | CheckAnswered:
        """Wait for the next event."""
        while True:
            self._client.tick()
            due = self._client.next_tick()
            wait_s = None if due is None else max(due - time.monotonic(), 0.01)
            try:
                event = self._client.handle(self._notices.get(timeout=wait_s))
            except queue.Empty:
                continue
            if isinstance(event, JudgeLost):
                message, _, fix = event.error.partition("\n")
                raise ConfigurationError(message or event.reason, remedy=event.fix or fix.strip() or None)
            if event is not None:
                return event


def judge_process(device: str, cache: Path, sandbox: SandboxKind) -> closing[JudgeProcess]:
    """Return a judge that runs for the duration of a `with` block.

    Args:
        cache: the directory of the judge's build artefacts and snapshots.

    Raises:
        ConfigurationError: the judge cannot start on this machine; the message is the judge's own.
    """
    return closing(JudgeProcess(device, cache, sandbox))
