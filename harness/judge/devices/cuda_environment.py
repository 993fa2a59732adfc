"""Device nodes and environment variables of a GPU in a sandbox. It does not import torch, because preflight uses it."""

from __future__ import annotations

import os
from pathlib import Path


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
