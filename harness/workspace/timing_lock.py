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

from harness.errors import ConfigurationError
from harness.workspace.directories import user_cache

_GATE, _TIMING = "quiet-gate", "quiet"
"""Names of the files: a waiting clock holds the first, so that later work waits; a timed batch holds both."""
TIMING_LOCKS = (_GATE, _TIMING)
_OF_ALL_USERS = Path("/run/lock")
_ANY_USER_CREATES = 0o1777
_ANY_USER_LOCKS = 0o666


def lock_directory() -> Path:
    """Return the directory of this host's device and timing locks: HARNESS_LOCK_DIR, /run/lock, or the user's cache."""
    configured = os.environ.get("HARNESS_LOCK_DIR")
    if configured:
        directory = Path(configured)
    elif os.access(_OF_ALL_USERS, os.W_OK):
        directory = _OF_ALL_USERS / "kernel-harness"
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            with contextlib.suppress(PermissionError):  # another user has just created it
                directory.chmod(_ANY_USER_CREATES)
    else:
        directory = user_cache() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def open_lock(path: Path) -> int:
    """Open a lock's file, which any user of this host may lock, and return its file descriptor.

    Args:
        path: the file; it is created if it does not exist.

    Raises:
        ConfigurationError: this user may not write to it, or not create it.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            # Without O_CREAT: in a directory for all users, the kernel refuses it for files of others (proc_sys_fs(5)).
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _ANY_USER_LOCKS)
            os.fchmod(descriptor, _ANY_USER_LOCKS)  # whatever the umask is
            return descriptor
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise ConfigurationError(
            f"this user may not lock a device of this host: {error.strerror}",
            where=str(path),
            remedy="let its owner run `chmod a+rw` on the file and `chmod 1777` on its directory, or set "
            "HARNESS_LOCK_DIR to a directory that all users of this host can write to",
        ) from error


@contextlib.contextmanager
def _locked(path: Path, operation: int) -> Iterator[None]:
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def timing() -> Iterator[None]:
    """Hold the lock exclusively while a batch is timed: waits for running work and blocks new work."""
    directory = lock_directory()
    with _locked(directory / _GATE, fcntl.LOCK_EX), _locked(directory / _TIMING, fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Hold the lock shared during work that would disturb a measurement. Keep it short: a judge may wait for it."""
    directory = lock_directory()
    with contextlib.ExitStack() as stack:
        with _locked(directory / _GATE, fcntl.LOCK_SH):
            stack.enter_context(_locked(directory / _TIMING, fcntl.LOCK_SH))
        yield


timing_apart = working
"""Hold the lock shared while a batch is timed on a device and processors that nothing else uses.

Judges of several GPUs time simultaneously. A batch on the CPU shares its resources and is not timed meanwhile.
"""
