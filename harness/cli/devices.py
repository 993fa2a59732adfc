"""The devices and the target of a command: as configured, else the GPUs of this machine, else the CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile

from harness.errors import ConfigurationError
from harness.model.config import Config
from harness.sol.hardware import target_name
from harness.workspace.processes import gpu_names

_INSTALL = "pip install 'kernel-harness[gpu13]'    # [gpu] for CUDA 12"


@dataclass(frozen=True)
class DeviceChoice:
    """Devices, their target, and the reason for the choice."""

    devices: tuple[str, ...]
    target: str
    reason: str
    cluster: str | None = None
    """Address of the Ray cluster that has the devices; None for devices of this host."""


def choose_devices(config: Config) -> DeviceChoice:
    """Return the devices of a configuration, or the default devices of this machine."""
    if config.devices:
        target = config.target or ("cpu" if config.devices == ("cpu",) else gpu_target() or "cuda")
        return DeviceChoice(with_all_gpus(config.devices), target, "as configured")
    gpu = gpu_target()
    if gpu is None:
        return DeviceChoice(("cpu",), config.target or "cpu", "no GPU was detected; --device selects another device")
    if missing := _missing_gpu_packages():
        reason = f"a GPU was detected ({gpu}), but these packages are missing: {', '.join(missing)}; {_INSTALL}"
        return DeviceChoice(("cpu",), config.target or "cpu", reason)
    return DeviceChoice(all_gpus(), config.target or gpu, f"a GPU was detected ({gpu}); --device cpu selects the CPU")


def with_all_gpus(devices: Sequence[str]) -> tuple[str, ...]:
    """Return the devices with `cuda` replaced by every GPU (`all_gpus`)."""
    return tuple(name for device in devices for name in (all_gpus() if device == "cuda" else (device,)))


def all_gpus() -> tuple[str, ...]:
    """Return a device for each visible GPU of the same model as the first GPU; `cuda` if there is only one."""
    shown, names = shown_gpus(), gpu_names()
    count = sum(name == names[0] for name in names) if shown is None else len(shown)
    return tuple(f"cuda:{number}" for number in range(count)) if count > 1 else ("cuda",)


def shown_gpus() -> list[str] | None:
    """Return the GPUs of CUDA_VISIBLE_DEVICES as CUDA reads them: those before the first empty or negative one.

    None without that variable: every GPU is visible.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return None
    words = (word.strip() for word in shown.split(","))
    return list(takewhile(lambda word: word and not word.startswith("-"), words))


def _missing_gpu_packages() -> list[str]:
    """Return the packages that the device cuda needs and that are not installed."""
    return [name for name in ("cupy", "pynvml", "cuda.bindings") if not _is_installed(name)]


def require_gpu_packages() -> None:
    """Check that the packages that the device cuda needs are installed.

    Raises:
        ConfigurationError: packages are missing.
    """
    missing = _missing_gpu_packages()
    if missing:
        raise ConfigurationError(
            f"the device cuda needs packages that are missing: {', '.join(missing)}", remedy=_INSTALL
        )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def gpu_target() -> str | None:
    """Return the target name of the first GPU, such as `h200`; None without a visible GPU."""
    names = gpu_names()
    return target_name(names[0]) if names and shown_gpus() != [] else None
