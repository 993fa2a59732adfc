"""Checks that the judges of a run can work on this machine, made before `harness start` starts anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec

from harness.cli.devices import gpu_names
from harness.errors import ConfigurationError
from harness.model.config import SandboxKind
from harness.model.devices import expand_devices, parse_device

COMPILERS = ("c++", "g++", "clang++")


def check_judges(devices: Sequence[str], sandbox: SandboxKind) -> None:
    """Check everything that would make the judges of these devices fail at their start.

    Where HARNESS_JUDGE_COMMAND names another judge, only the devices' names are checked: what it needs is not known.

    Raises:
        ConfigurationError: the first thing that is missing, and how to get it.
    """
    parsed = [parse_device(name) for name in expand_devices(devices)]
    if os.environ.get("HARNESS_JUDGE_COMMAND"):
        return
    numbers = [number for kind, number in parsed if kind == "cuda"]
    if numbers:
        _check_gpus(max(numbers))
    if len(numbers) < len(parsed) and compiler() is None:
        raise ConfigurationError(
            "there is no C++ compiler; the language cpp and torch.compile need one", remedy="apt-get install g++"
        )
    from harness.judge.sandbox import check

    check(sandbox)


def compiler() -> str | None:
    """The C++ compiler of this machine: `$CXX`, or the first that there is."""
    named = os.environ.get("CXX")
    return named or next((name for name in COMPILERS if shutil.which(name)), None)


def _check_gpus(highest: int) -> None:
    names = gpu_names()
    if not names:
        raise ConfigurationError(
            "there is no GPU that nvidia-smi lists", where="--device", remedy="--device cpu, or install NVIDIA's driver"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(visible.split(",")) if visible else len(names)
    if highest >= count:
        listed = ", ".join(f"cuda:{number}" for number in range(count))
        raise ConfigurationError(f"no such device: cuda:{highest}", where="--device", remedy=f"GPUs here: {listed}")
    lacking = [name for name in ("cupy", "pynvml") if find_spec(name) is None]
    if lacking:
        raise ConfigurationError(
            f"the device cuda needs {' and '.join(lacking)}",
            remedy="pip install 'kernel-harness[gpu13]'    # [gpu] for CUDA 12",
        )
