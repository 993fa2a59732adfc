"""Quiet while a clock runs: what computes (compilers, tuners) and what is timed keep out of each other's way.

Many may work at once; a judge that times shares the machine with none of them. A judge that waits is served before
work that comes later, so that a stream of short jobs cannot hold it up for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def lock_directory() -> Path:
    """Where this host's device locks and the quiet lock lie: HARNESS_LOCK_DIR, /run/lock, or the user's cache."""
    named = os.environ.get("HARNESS_LOCK_DIR")
    if named:
        directory = Path(named)
    elif os.access("/run/lock", os.W_OK):
        directory = Path("/run/lock/kernel-harness")
    else:
        directory = Path.home() / ".cache" / "kernel-harness" / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def timing() -> Iterator[None]:
    """Hold while a batch is timed: waits for the work that goes on, and keeps further work waiting."""
    directory = lock_directory()
    with _locked(directory / "quiet-gate", fcntl.LOCK_EX), _locked(directory / "quiet", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Hold while something computes that would disturb a clock. Keep it short: a judge may be waiting."""
    directory = lock_directory()
    with contextlib.ExitStack() as stack:
        with _locked(directory / "quiet-gate", fcntl.LOCK_SH):
            stack.enter_context(_locked(directory / "quiet", fcntl.LOCK_SH))
        yield
