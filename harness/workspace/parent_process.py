"""Parent-death signals: every part of a running harness ends when its supervisor ends, also by SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal

from harness.errors import ConfigurationError

PARENT_VARIABLE = "HARNESS_PARENT"
"""The process id of the supervisor, in the environment of its parts."""
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Request SIGKILL for the end of the supervisor; do nothing in a process without one.

    Raises:
        ConfigurationError: the kernel refuses the request, or the supervisor has already ended: another process is then
            the parent.
    """
    supervisor = os.environ.pop(PARENT_VARIABLE, None)
    if supervisor is None:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        error = os.strerror(ctypes.get_errno())
        raise ConfigurationError(f"the kernel refuses to end this process with its supervisor: {error}")
    if os.getppid() != int(supervisor):
        raise ConfigurationError(f"the supervisor of this process has ended: process {supervisor}")
