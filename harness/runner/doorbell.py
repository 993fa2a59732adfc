"""A page of shared host memory with which the judge requests one call at a time from a GPU runner.

Both processes map the page. The judge writes a request, then the request's number. The runner writes the reading of its
own clock, then the same number. The judge keeps its own count, because the runner can write to the whole page.
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
    """Run an empty kernel, so that the GPU switches to the runner's CUDA context. Not timed."""
    CALL = 2
    """Make one call on the inputs of a placement."""
    END = 3
    """Return from `serve`."""


class Doorbell:
    """A mapping of the page, in the judge or in the runner.

    Args:
        descriptor: file descriptor of `BYTES` of shared memory; it remains open.
    """

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, BYTES)).cast("q")

    def prepare(self, request: Request, placement: int = 0) -> None:
        """Judge: write the next request, without its number.

        Args:
            request: kind of the request.
            placement: number of the placement for a call.
        """
        self._words[_REQUEST] = request
        self._words[_PLACEMENT] = placement

    def ring(self, number: int) -> None:
        """Judge: publish the prepared request under a number that no earlier request had."""
        self._words[_NUMBER] = number

    def is_answered(self, number: int, spins: int) -> bool:
        """Judge: return true if the runner answers a request while the page is read.

        Args:
            number: the request.
            spins: reads of the page before the method returns false.
        """
        words = self._words
        for _ in range(spins):  # noqa: SIM110 - a generator would add to the measured time
            if words[_ANSWERED] == number:
                return True
        return False

    @property
    def claimed_ns(self) -> int:
        """Judge: duration of the last call in nanoseconds, as the runner reports it."""
        return int(self._words[_CLAIMED_NS])

    def serve(self, call: Callable[[int], int], ping: Callable[[], object]) -> None:
        """Runner: answer requests until `Request.END`.

        Args:
            call: makes one call at a placement and returns its duration in nanoseconds.
            ping: runs an empty kernel and waits for it.
        """
        words = self._words
        number = words[_ANSWERED]
        while True:
            while words[_NUMBER] == number:
                pass
            number = words[_NUMBER]
            request = words[_REQUEST]
            if request == Request.CALL:
                words[_CLAIMED_NS] = call(words[_PLACEMENT])
            elif request == Request.PING:
                ping()
            words[_ANSWERED] = number
            if request == Request.END:
                return


def create_page() -> int:
    """Return the file descriptor of a new zeroed page; the caller closes it."""
    descriptor = os.memfd_create("doorbell", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, BYTES)
    return descriptor
