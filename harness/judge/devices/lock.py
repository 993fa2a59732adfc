"""A lock of this host for each device, so that only one judge uses it. It is released when the holder ends."""

from __future__ import annotations

import fcntl
import os

from harness.errors import ConfigurationError
from harness.workspace.timing_lock import lock_directory, open_lock


def take_device_lock(name: str, device: str) -> int:
    """Lock a device and return a file descriptor that holds the lock until it is closed.

    Args:
        name: identifies the lock's file.
        device: name of the device in the error message.

    Raises:
        ConfigurationError: another judge holds it, or this user may not lock it.
    """
    path = lock_directory() / f"device-{name}"
    lock = open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 100, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise ConfigurationError(
            f"the device {device} is used by process {holder}",
            where=str(path),
            remedy="wait until it has ended, or end it: `harness stop` in its workspace ends a run",
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
