"""Processes of this machine: identity, output, kills for lack of memory, and the end of a process with its parent."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from harness.errors import ConfigurationError

PARENT_VARIABLE = "HARNESS_PARENT"
"""The process id of the supervisor, in the environment of its parts."""
_PR_SET_PDEATHSIG = 1
_OUTPUT_TIMEOUT_S = 20


def start_ticks(pid: int) -> int | None:
    """Return the start time of a running process in clock ticks since boot; None if no such process runs.

    A zombie does not run. The pid and the start time identify a process: the kernel gives the pid of an ended process
    to another later.

    Source: proc(5), /proc/PID/stat, fields 3 (state) and 22 (starttime).
    """
    with suppress(OSError, IndexError, ValueError):
        # Field 2 is the name in parentheses and may contain blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[19]) if fields[0] not in {"Z", "X"} else None
    return None


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed since boot for lack of memory; 0 without that counter.

    Source: /proc/vmstat, `oom_kill`.
    """
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def output_of(*command: str) -> str | None:
    """Return the output of a program, or None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_OUTPUT_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def gpu_names() -> tuple[str, ...]:
    """Return the models of this machine's GPUs from nvidia-smi; () if it is missing or fails."""
    listed = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return tuple((listed or "").strip().splitlines())


def end_with_parent() -> None:
    """Request SIGKILL for the end of the supervisor, however it ends; do nothing in a process without one.

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
