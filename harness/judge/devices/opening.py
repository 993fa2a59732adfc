"""Open a device by its name."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationError
from harness.judge.devices.interface import Device
from harness.model.config import SandboxKind


def open_device(name: str, *, cache: Path, sandbox: SandboxKind) -> Device:
    """Open and lock a device by its name: `cpu`, `cuda`, `cuda:1`.

    Raises:
        ConfigurationError: no such device, or another judge holds it.
    """
    if name == "cpu":
        from harness.judge.devices.cpu import CpuDevice  # noqa: PLC0415 - only the device asked for is imported

        return CpuDevice(cache=cache, sandbox=sandbox)
    kind, _, number = name.partition(":")
    if kind == "cuda" and (number or "0").isdigit():
        from harness.judge.devices.cuda import open_cuda  # noqa: PLC0415

        return open_cuda(int(number or 0), cache=cache, sandbox=sandbox)
    raise ConfigurationError(f"no such device: {name}", where="--device", remedy="devices: cpu, cuda, cuda:0 ...")
