"""Environment of a GPU: its device nodes and variables in a sandbox, and NVIDIA's Multi-Process Service (MPS).

Under MPS, kernels of several processes run at the same time. Imports no torch, so that a preflight can use this module.
Source: NVIDIA Multi-Process Service guide, "Appendix: Environment Variables" and "Appendix: Tools and Interface
Reference".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from harness.errors import HostFaultError

_MPS_NAME = "nvidia-cuda-mps"
"""Name of the control daemon and of its servers in /proc/PID/comm, which is truncated to 15 characters."""
_MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
"""Directory of the daemon's pipes, unless CUDA_MPS_PIPE_DIRECTORY is set."""


def device_nodes() -> tuple[str, ...]:
    """Return the driver's device nodes of this machine."""
    return tuple(str(path) for path in sorted(Path("/dev").glob("nvidia*")))


def runner_environment(device: str, capability: tuple[int, int] = (0, 0)) -> dict[str, str]:
    """Return the environment variables that CUDA and Triton need inside the sandbox.

    Args:
        device: value of CUDA_VISIBLE_DEVICES, for the only device that is visible in the sandbox.
        capability: compute capability of the device, for runners that compile before they use it.
    """
    major, minor = capability
    env = {
        "HARNESS_RUNNER_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": device, "TRITON_CACHE_DIR": "/tmp/triton",  # noqa: S108
        "CUDA_CACHE_DISABLE": "1", "HARNESS_RUNNER_CAPABILITY": str(10 * major + minor),
    }  # fmt: skip
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME"):
        if name in os.environ:
            env[name] = os.environ[name]
    return env


def require_no_mps(processes: Path = Path("/proc")) -> None:
    """Check that no MPS daemon serves this machine's GPUs.

    A daemon outside this container is visible by its pipe, which clients in the container would use.

    Args:
        processes: directory in which the kernel lists processes.

    Raises:
        HostFaultError: an MPS daemon is active.
    """
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_PIPES)) / "control"
    where = next(_daemons(processes), None) or (str(pipe) if pipe.exists() else None)
    if where is not None:
        raise HostFaultError(
            "the Multi-Process Service (MPS) is active: kernels of several processes run at the same time, so that no "
            "timing is reliable",
            where=where,
            remedy=f"echo quit | nvidia-cuda-mps-control    # and remove {pipe.parent} if it is left",
        )


def _daemons(processes: Path) -> Iterator[str]:
    """Yield the MPS daemons and servers as `process PID`."""
    for process in processes.iterdir():
        with contextlib.suppress(OSError):  # it is no process, or has ended
            if process.name.isdigit() and (process / "comm").read_text().startswith(_MPS_NAME):
                yield f"process {process.name}"
