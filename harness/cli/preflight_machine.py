"""Requirements of a run that concern this machine: devices, target, disk, compiler, sandbox and torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.cli.check import Check, RunPlan
from harness.cli.devices import gpu_names, missing_gpu_packages
from harness.cli.torch_trial import (
    COMPILES_WITHIN_S,
    Depth,
    forget,
    is_remembered,
    remember,
    torch_version,
    try_torch,
)
from harness.errors import ConfigurationError
from harness.judge.sandbox import check
from harness.model.devices import expand_devices, parse_device
from harness.sol.hardware import CPU, table, target_name
from harness.workspace.directories import Workspace

COMPILERS = ("c++", "g++", "clang++")
_LEAST_GB, _AMPLE_GB = 1, 5
_TRIAL_S = 18.0
_ASK_S = 20


def check_devices(plan: RunPlan) -> str:
    """The devices exist, each is named once, and the packages of their judge are installed.

    Where HARNESS_JUDGE_COMMAND names another judge, only the names are checked: what it needs is not known.
    """
    parsed = [parse_device(name) for name in expand_devices(plan.chosen.devices)]
    repeated = next((device for device in parsed if parsed.count(device) > 1), None)
    if repeated is not None:
        raise ConfigurationError(
            f"a device is named twice: {repeated[0]}:{repeated[1]}", where="--device", remedy="name each device once"
        )
    numbers = [number for kind, number in parsed if kind == "cuda"]
    if numbers and not os.environ.get("HARNESS_JUDGE_COMMAND"):
        _check_gpus(max(numbers))
    return f"{', '.join(plan.chosen.devices)}: {plan.chosen.why}"


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
    lacking = missing_gpu_packages()
    if lacking:
        raise ConfigurationError(
            f"the device cuda needs {' and '.join(lacking)}",
            remedy="pip install 'kernel-harness[gpu13]'    # [gpu] for CUDA 12",
        )


def check_target(plan: RunPlan) -> str:
    """The target is one of the hardware table's, or the one that a GPU of this machine has."""
    named = plan.config.target
    if named is None or named == CPU or named in table():
        return plan.chosen.target
    known = [CPU, *sorted(table())]
    own = [target_name(gpu) for gpu in gpu_names()]
    if named in own:
        return named
    raise ConfigurationError(
        f"no such target: {named}",
        where="`target` in harness.yaml",
        remedy=f"targets: {', '.join(dict.fromkeys([*known, *own]))}; without the key it is the device's own",
    )


def check_disk(plan: RunPlan) -> Check:
    """There is room for worktrees, builds and the ledger."""
    workspace = plan.workspace or Workspace(Path.cwd())
    places = (workspace.root, workspace.git_common_dir) if plan.workspace else (workspace.root,)
    free, place = min((shutil.disk_usage(place).free / 1e9, place) for place in places)
    if free < _LEAST_GB:
        raise ConfigurationError(
            f"the disk is full: {free:.1f} GB are free, a run needs {_LEAST_GB}",
            where=str(place),
            remedy="rm -r .harness/cache    # derived, made again when needed",
        )
    found = f"{free:.0f} GB free"
    return Check("disk", "ok", found) if free >= _AMPLE_GB else Check("disk", "note", f"{found}: a long run needs more")


def compiler() -> str | None:
    """The C++ compiler of this machine: `$CXX`, or the first that there is."""
    named = os.environ.get("CXX")
    return named or next((name for name in COMPILERS if shutil.which(name)), None)


def check_compiler(_: RunPlan) -> str:
    """There is a C++ compiler, and it runs."""
    name = compiler()
    if name is None:
        raise ConfigurationError(
            "there is no C++ compiler; the language cpp and torch.compile need one", remedy="apt-get install g++"
        )
    said = ask(name, "--version")
    if not said:
        raise ConfigurationError(
            f"the C++ compiler `{name}` does not run; the language cpp and torch.compile need one",
            where="CXX" if os.environ.get("CXX") else None,
            remedy="apt-get install g++, and unset CXX or name a compiler that runs",
        )
    return said.splitlines()[0]


def check_bubblewrap(plan: RunPlan) -> str:
    """The sandbox of candidates can be started."""
    check("bubblewrap")
    used = "" if plan.config.judge.sandbox == "bubblewrap" else "; judge.sandbox is none, so the judge does not use it"
    return f"{(ask('bwrap', '--version') or '').strip()}, tried{used}"


def check_torch(plan: RunPlan) -> Check | str:
    """Torch can be imported inside the sandbox, and torch.compile works there for the CPU.

    A trial takes seconds. It is remembered for the versions of torch, Python, the compilers and bubblewrap.
    """
    version = torch_version()
    if os.environ.get("HARNESS_JUDGE_COMMAND"):
        return Check("torch", "note", f"{version}; not tried, since HARNESS_JUDGE_COMMAND names another judge")
    if plan.config.judge.sandbox == "bubblewrap" and shutil.which("bwrap") is None:
        return Check("torch", "note", f"{version}; not tried, since bubblewrap is missing")
    on_cpu = "cpu" in expand_devices(plan.chosen.devices)
    depth: Depth = "compile" if on_cpu else "import"
    if plan.thorough or not is_remembered(plan.cache, plan.config.judge.sandbox, depth):
        _try_torch(plan, depth)
    if on_cpu:
        return f"{version}, imported and torch.compile tried inside the sandbox"
    return Check("torch", "note", f"{version}, imported inside the sandbox; torch.compile is not tried on a GPU")


def _try_torch(plan: RunPlan, depth: Depth) -> None:
    sandbox = plan.config.judge.sandbox
    plan.say("trying torch inside the sandbox, once for the versions that are installed")
    within_s = COMPILES_WITHIN_S if plan.thorough else _TRIAL_S
    trial = try_torch(sandbox, depth, within_s=within_s)
    # A slow machine is no reason to refuse a run, nor to wait each time: its judges have minutes to start.
    no_compile = f"no answer within {within_s:g} s" if trial.timed_out and plan.thorough else trial.no_compile
    if trial.no_import is None and no_compile is None:
        remember(plan.cache, sandbox, depth)
        return
    forget(plan.cache, sandbox, depth)
    inside = "inside the sandbox" if sandbox == "bubblewrap" else "outside any sandbox"
    if trial.no_import is not None:
        raise ConfigurationError(
            f"torch cannot be imported {inside}: {trial.no_import}",
            remedy=f"pip install torch    # into {sys.prefix}: of other directories the sandbox shows /usr only",
        )
    raise ConfigurationError(
        f"torch.compile does not work {inside}: {no_compile}",
        remedy="apt-get install g++ python3-dev    # it needs a compiler and the headers of this Python",
    )


def ask(*command: str) -> str | None:
    """Return the output of a program, or None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
