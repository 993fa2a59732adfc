"""Which device and target a command means when nobody says: cuda where there is one, else cpu."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from harness.model.config import Config

_ASK_S = 10


@dataclass(frozen=True)
class Chosen:
    """Devices, the target they have, and why."""

    devices: tuple[str, ...]
    target: str
    why: str
    cluster: str | None = None
    """Address of the Ray cluster that has the devices; None for devices of this host."""


def choose(config: Config) -> Chosen:
    """The devices of a configuration, or the default of this machine."""
    if config.devices:
        target = config.target or ("cpu" if config.devices == ("cpu",) else gpu_target() or "cuda")
        return Chosen(with_all_gpus(config.devices), target, "as configured")
    found = gpu_target()
    if found is None:
        return Chosen(("cpu",), config.target or "cpu", "the one that every machine has; --device names another")
    if lacking := missing_gpu_packages():
        why = f"there is a GPU ({found}), and no {' and '.join(lacking)}: pip install 'kernel-harness[gpu13]'"
        return Chosen(("cpu",), config.target or "cpu", why)
    return Chosen(all_gpus(), config.target or found, f"a GPU is here ({found}); --device cpu does without")


def with_all_gpus(devices: Sequence[str]) -> tuple[str, ...]:
    """Return the devices with `cuda` replaced by every GPU (`all_gpus`)."""
    return tuple(name for device in devices for name in (all_gpus() if device == "cuda" else (device,)))


def all_gpus() -> tuple[str, ...]:
    """Return a device for each GPU that CUDA shows and that is of the first one's model; `cuda` where that is one."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = gpu_names()
    if shown is not None:
        count = len([number for number in shown.split(",") if number.strip()])
    else:
        count = sum(name == names[0] for name in names)
    return tuple(f"cuda:{number}" for number in range(count)) if count > 1 else ("cuda",)


def missing_gpu_packages() -> list[str]:
    """Packages that the device cuda needs and that are not installed."""
    return [name for name in ("cupy", "pynvml", "cuda.bindings") if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def gpu_target() -> str | None:
    """The target's name of the first GPU (`h200`), or None where there is no usable one."""
    from harness.sol.hardware import target_name

    names = gpu_names()
    return target_name(names[0]) if names else None


def gpu_names() -> list[str]:
    """The names of this machine's GPUs, as nvidia-smi lists them; none where it is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()
