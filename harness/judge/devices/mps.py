"""Detection of NVIDIA's Multi-Process Service, under which kernels of several processes run at the same time.

Source: NVIDIA Multi-Process Service guide, "Appendix: Environment Variables" and "Appendix: Tools and Interface
Reference". Imports no torch, so that a preflight can use it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from harness.errors import HostFaultError

_NAME = "nvidia-cuda-mps"
"""Name of the control daemon and of its servers in /proc/PID/comm, which has 15 characters."""
_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
"""Directory of the daemon's pipes, where CUDA_MPS_PIPE_DIRECTORY names no other."""


def require_no_mps(processes: Path = Path("/proc")) -> None:
    """Check that no MPS daemon serves this machine's GPUs.

    A daemon outside this container shows by its pipe, which clients here would use.

    Args:
        processes: where the kernel lists processes.

    Raises:
        HostFaultError: one does.
    """
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _PIPES)) / "control"
    where = next(_daemons(processes), None) or (str(pipe) if pipe.exists() else None)
    if where is not None:
        raise HostFaultError(
            "the Multi-Process Service (MPS) is active: kernels of several processes run at the same time, so that no "
            "time can be trusted",
            where=where,
            remedy=f"echo quit | nvidia-cuda-mps-control   (and remove {pipe.parent} if it is left)",
        )


def _daemons(processes: Path) -> Iterator[str]:
    """Process ids of MPS daemons and servers."""
    for name in processes.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # the process has ended
            if name.read_text().startswith(_NAME):
                yield f"process {name.parent.name}"
