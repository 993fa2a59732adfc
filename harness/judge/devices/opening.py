"""Open a device by its name."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationError
from harness.judge.devices.interface import Device
from harness.model.config import SandboxKind
from harness.model.devices import parse_device


def open_device(name: str, *, cache: Path, sandbox: SandboxKind) -> Device:
    """Open and lock a device.

    Args:
        name: `cpu`, `cuda` or `cuda:1`.
        cache: directory of compiled code and calibrations.
        sandbox: isolation of the runners.

    Raises:
        ConfigurationError: there is no such device, a package is missing, or another judge holds it.
    """
    kind, number = parse_device(name)
    if kind == "cpu":
        from harness.judge.devices.cpu import open_cpu  # noqa: PLC0415 - imports only what the selected device needs

        return open_cpu(cache=cache, sandbox=sandbox)
    try:
        import cupy  # noqa: F401, PLC0415 - only where there is a GPU
        from cuda.bindings import driver  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"the device cuda needs CuPy and NVIDIA's cuda.bindings: {error}",
            remedy="pip install 'kernel-harness[gpu13]'    # [gpu] for CUDA 12",
        ) from error
    from harness.judge.devices.cuda import open_cuda  # noqa: PLC0415

    return open_cuda(number, cache=cache, sandbox=sandbox)
