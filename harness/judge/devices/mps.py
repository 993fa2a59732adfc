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
"""Name of the control daemon and of its servers in /proc/PID/comm, which is truncated to 15 characters."""
_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
"""Directory of the daemon's pipes, unless CUDA_MPS_PIPE_DIRECTORY is set."""


def require_no_mps(processes: Path = Path("/proc")) -> None:
    """Check that no MPS daemon serves this machine's GPUs.

    A daemon outside this container is visible by its pipe, which clients in the container would use.

    Args:
        processes: directory in which the kernel lists processes.

    Raises:
        HostFaultError: an MPS daemon is active.
    """
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _PIPES)) / "control"
    where = next(_daemons(processes), None) or (str(pipe) if pipe.exists() else None)
    if where is not None:
        raise HostFaultError(
            "the Multi-Process Service (MPS) is active: kernels of several processes run at the same time, so that no "
            "timing is reliable",
            where=where,
            remedy=f"echo quit | nvidia-cuda-mps-control   (and remove {pipe.parent} if it is left)",
        )


def _daemons(processes: Path) -> Iterator[str]:
    """Yield the MPS daemons and servers as `process PID`."""
    for name in processes.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # the process has ended
            if name.read_text().startswith(_NAME):
                yield f"process {name.parent.name}"
