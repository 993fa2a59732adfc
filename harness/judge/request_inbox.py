"""Requests of a judge's client, read by a thread so that checks are received while a candidate is being judged."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque

from pydantic import BaseModel, ValidationError

from harness.errors import HarnessError
from harness.model.judging import PROTOCOL_FIX, CheckRequest, JudgeRequest, protocol_mismatch

_READ_BYTES = 1 << 16


class _RequestKind(BaseModel):
    op: str = "judge"


class RequestInbox:
    """Queues of requests and of checks, each in the order of arrival.

    Args:
        descriptor: file descriptor that lines are read from until end-of-file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting: deque[JudgeRequest] = deque()
        self._checks: deque[CheckRequest] = deque()
        self._ended = False

    def start(self) -> None:
        """Start the reading thread, which ends at end-of-file or with the process."""
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def _read(self) -> None:
        incomplete = b""
        while piece := os.read(self._descriptor, _READ_BYTES):  # not sys.stdin, whose lock outlives this thread
            *lines, incomplete = (incomplete + piece).split(b"\n")
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def next(self) -> JudgeRequest | CheckRequest | None:
        """Wait for the next request or check, and return it; None at end-of-file. Checks come before requests.

        Raises:
            HarnessError: a line is not a request, or has another protocol version.
        """
        while True:
            if (check := self.next_check()) is not None:
                return check
            if self._waiting:
                return self._waiting.popleft()
            if self._ended:
                return None
            self._take(self._lines.get())

    def next_check(self) -> CheckRequest | None:
        """Return the next check without waiting; None if none has arrived.

        Raises:
            HarnessError: as `next`.
        """
        while not self._lines.empty():
            self._take(self._lines.get())
        return self._checks.popleft() if self._checks else None

    def _take(self, line: bytes | None) -> None:
        if line is None:
            self._ended = True
            return
        if not line.strip():
            return
        try:
            if _RequestKind.model_validate_json(line).op == "check":
                self._checks.append(CheckRequest.model_validate_json(line))
                return
            mismatch = protocol_mismatch(line, "request")
            if mismatch is not None:
                raise HarnessError(f"the client {mismatch}", where="a request on stdin", remedy=PROTOCOL_FIX)
            self._waiting.append(JudgeRequest.model_validate_json(line))
        except ValidationError as error:
            raise HarnessError(f"not a request: {error}", where="stdin") from error
