"""The timing lock: work that would disturb a measurement holds it shared, a timed batch on a CPU exclusively.

A judge that waits for the exclusive lock gets it before work that starts later, so that a stream of short jobs cannot
delay it without limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def lock_directory() -> Path:
    """Return the directory of this host's device and timing locks: HARNESS_LOCK_DIR, /run/lock, or the user's cache."""
    configured = os.environ.get("HARNESS_LOCK_DIR")
    if configured:
        directory = Path(configured)
    elif os.access("/run/lock", os.W_OK):
        directory = Path("/run/lock/kernel-harness")
    else:
        directory = Path.home() / ".cache" / "kernel-harness" / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def _locked(path: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def timing() -> Iterator[None]:
    """Hold the lock exclusively while a batch is timed: waits for running work and blocks new work."""
    directory = lock_directory()
    with _locked(directory / "quiet-gate", fcntl.LOCK_EX), _locked(directory / "quiet", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Hold the lock shared during work that would disturb a measurement. Keep it short: a judge may wait for it."""
    directory = lock_directory()
    with contextlib.ExitStack() as stack:
        with _locked(directory / "quiet-gate", fcntl.LOCK_SH):
            stack.enter_context(_locked(directory / "quiet", fcntl.LOCK_SH))
        yield


timing_apart = working
"""Hold the lock shared while a batch is timed on a device and processors that nothing else uses.

Judges of several GPUs time simultaneously. A batch on the CPU shares its resources and is not timed meanwhile.
"""
