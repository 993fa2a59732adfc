"""The page of host memory with which judge and runner signal each other, as 64-bit words."""

from __future__ import annotations

import ctypes
import mmap
import time

SEQUENCE, DONE, KIND, PLACEMENT, RUNNER_NS, COUNT = range(6)
"""Words of a page. The judge writes them, except DONE and RUNNER_NS."""
STOP, CALL, PING, EMPTY, BATCH = range(5)
"""Kinds of request."""
PAGE_BYTES = 4096
_SPINS_PER_LOOK = 100_000


class NoAnswerError(RuntimeError):
    """The other process did not answer before the deadline."""


class Doorbell:
    """One page of an anonymous shared mapping, which forked processes inherit."""

    def __init__(self, memory: mmap.mmap, page: int) -> None:
        self.words = memoryview(memory)[page * PAGE_BYTES : (page + 1) * PAGE_BYTES].cast("q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory, page * PAGE_BYTES))

    def clear(self) -> None:
        """Set every word to 0, for a new runner."""
        for word in range(COUNT + 1):
            self.words[word] = 0

    def request(self, kind: int, placement: int = 0, count: int = 0) -> int:
        """Prepare a request without sending it, and return its sequence number.

        Args:
            kind: kind of the request, such as CALL.
            placement: number of the set.
            count: number of calls of a batch.
        """
        words = self.words
        words[KIND], words[PLACEMENT], words[COUNT] = kind, placement, count
        return int(words[SEQUENCE]) + 1

    def wait_done(self, sequence: int, timeout_s: float = 5.0) -> None:
        """Spin until the runner has answered a request.

        Args:
            sequence: sequence number of the request.
            timeout_s: time limit in seconds.

        Raises:
            NoAnswerError: the runner did not answer within the time limit.
        """
        words = self.words
        deadline = time.monotonic() + timeout_s
        while True:
            for _ in range(_SPINS_PER_LOOK):
                if words[DONE] == sequence:
                    return
            if time.monotonic() > deadline:
                raise NoAnswerError(f"the runner did not answer request {sequence} within {timeout_s} s")
