"""Parent-death signals: every part of a running harness ends when the supervisor ends, also by SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal

from harness.errors import ConfigurationError

PARENT_VARIABLE = "HARNESS_PARENT"
"""The process id of the supervisor, in the environment of its parts."""
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Request SIGKILL for when the supervisor ends; do nothing in a process that was started by hand.

    The supervisor may have died before we asked: then our parent is another process already, and we end here.
    """
    supervisor = os.environ.pop(PARENT_VARIABLE, None)
    if supervisor is None:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        error = os.strerror(ctypes.get_errno())
        raise ConfigurationError(f"the kernel does not let this process die with its supervisor: {error}")
    if os.getppid() != int(supervisor):
        raise ConfigurationError(f"the supervisor of this process has ended: process {supervisor}")
