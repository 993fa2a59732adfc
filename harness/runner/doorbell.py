"""The page of shared host memory through which the judge of a GPU asks a runner for one call at a time.

Both processes map it. The judge writes what it asks for, then the request's number. The runner writes its own reading
of the clock, then the same number. The judge keeps its own count, since the runner can write to the whole page.
Standard library only.
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import Callable

BYTES = mmap.PAGESIZE
_NUMBER, _REQUEST, _PLACEMENT, _ANSWERED, _CLAIMED_NS = range(5)


class Request(enum.IntEnum):
    """Kinds of request of the judge."""

    PING = 1
    """Run an empty kernel, so that the runner's CUDA context is the current one. Not timed."""
    CALL = 2
    """One call on the inputs at a placement."""
    END = 3
    """Return from `serve`."""


class Doorbell:
    """One mapping of the page, by the judge or by the runner.

    Args:
        descriptor: file descriptor of `BYTES` of shared memory. It stays open.
    """

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, BYTES)).cast("q")

    def prepare(self, request: Request, placement: int = 0) -> None:
        """Judge: write what the next request asks for."""
        self._words[_REQUEST] = request
        self._words[_PLACEMENT] = placement

    def ring(self, number: int) -> None:
        """Judge: publish the prepared request under a number that no earlier request had."""
        self._words[_NUMBER] = number

    def is_answered(self, number: int, spins: int) -> bool:
        """Judge: whether the runner answers within so many reads of the page."""
        words = self._words
        for _ in range(spins):  # noqa: SIM110 - a generator would add to what is measured
            if words[_ANSWERED] == number:
                return True
        return False

    @property
    def claimed_ns(self) -> int:
        """Judge: duration of the last call in nanoseconds, as the runner says."""
        return int(self._words[_CLAIMED_NS])

    def serve(self, call: Callable[[int], int], ping: Callable[[], object]) -> None:
        """Runner: answer requests until `END`.

        Args:
            call: makes one call at a placement and returns its duration in nanoseconds.
            ping: runs an empty kernel and waits for it.
        """
        words = self._words
        answered = words[_ANSWERED]
        while True:
            while words[_NUMBER] == answered:
                pass
            answered = words[_NUMBER]
            request = words[_REQUEST]
            if request == Request.CALL:
                words[_CLAIMED_NS] = call(words[_PLACEMENT])
            elif request == Request.PING:
                ping()
            words[_ANSWERED] = answered
            if request == Request.END:
                return


def create_page() -> int:
    """File descriptor of a new page, zeroed; the caller closes it."""
    descriptor = os.memfd_create("doorbell", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, BYTES)
    return descriptor
