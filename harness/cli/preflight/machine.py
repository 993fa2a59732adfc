"""Requirements of a run that concern this machine: devices, target, disk, compiler, sandbox and torch."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from harness.cli.devices import require_gpu_packages, shown_gpus
from harness.cli.preflight.check import Check, RunPlan
from harness.cli.preflight.torch_trial import (
    TRIAL_TIMEOUT_S,
    TorchTrial,
    TrialDevice,
    remember,
    success_record,
    torch_version,
    try_torch,
)
from harness.errors import ConfigurationError
from harness.judge.build.builder import compile_one_function
from harness.judge.devices.cuda_environment import require_no_mps
from harness.judge.isolation.sandbox import check
from harness.model.config import SandboxKind
from harness.model.devices import DEVICES_SOURCE, expand_devices, parse_device
from harness.model.process_status import DaemonStatus
from harness.sol.hardware import CPU, table, target_name
from harness.workspace.directories import Workspace
from harness.workspace.processes import gpu_names, output_of
from harness.workspace.status import is_alive, read_status
from harness.workspace.timing_lock import TIMING_LOCKS, lock_directory, open_lock

COMPILERS = ("c++", "g++", "clang++")
_REQUIRED_GB, _RECOMMENDED_GB = 1, 5
_TRIAL_S = 18.0


def check_devices(plan: RunPlan) -> str:
    """Check that the devices exist, that each is named once, and that the packages of their judge are installed.

    If HARNESS_JUDGE_COMMAND names another judge, only the names are checked: its requirements are not known.
    """
    parsed = [parse_device(name) for name in expand_devices(plan.chosen.devices)]
    repeated = next((device for device in parsed if parsed.count(device) > 1), None)
    if repeated is not None:
        raise ConfigurationError(
            f"a device is named twice: {repeated[0]}:{repeated[1]}",
            where=DEVICES_SOURCE,
            remedy="name each device once",
        )
    numbers = [number for kind, number in parsed if kind == "cuda"]
    if numbers and not os.environ.get("HARNESS_JUDGE_COMMAND"):
        _check_gpus(max(numbers))
    return f"{', '.join(plan.chosen.devices)}: {plan.chosen.reason}"


def _check_gpus(highest: int) -> None:
    names = gpu_names()
    if not names:
        raise ConfigurationError(
            "nvidia-smi lists no GPU", where=DEVICES_SOURCE, remedy="--device cpu, or install NVIDIA's driver"
        )
    shown = shown_gpus()
    count = len(names if shown is None else shown)
    if highest >= count:
        listed = ", ".join(f"cuda:{number}" for number in range(count)) or "none, by CUDA_VISIBLE_DEVICES"
        raise ConfigurationError(f"no such device: cuda:{highest}", where=DEVICES_SOURCE, remedy=f"GPUs here: {listed}")
    require_gpu_packages()
    require_no_mps()


def check_target(plan: RunPlan) -> str:
    """Check that the target is in the hardware table, or is the target of a GPU of this machine."""
    target = plan.config.target
    if target is None or target == CPU or target in table():
        return plan.chosen.target
    listed = [CPU, *sorted(table())]
    own = [target_name(gpu) for gpu in gpu_names()]
    if target in own:
        return target
    raise ConfigurationError(
        f"no such target: {target}",
        where="`target` in harness.yaml",
        remedy=f"targets: {', '.join(dict.fromkeys([*listed, *own]))}; without the key, the device sets the target",
    )


def check_disk(plan: RunPlan) -> Check:
    """Check that the disk has space for worktrees, builds and the ledger."""
    workspace = plan.workspace or Workspace(Path.cwd())
    directories = (workspace.root, workspace.git_common_dir) if plan.workspace else (workspace.root,)
    free_gb, directory = min((shutil.disk_usage(path).free / 1e9, path) for path in directories)
    if free_gb < _REQUIRED_GB:
        same_disk = plan.workspace is not None and directory.stat().st_dev == workspace.root.stat().st_dev
        raise ConfigurationError(
            f"the disk is full: {free_gb:.1f} GB are free, a run needs {_REQUIRED_GB} GB",
            where=str(directory),
            remedy=f"free space on that disk{f'; {workspace.cache} can be deleted' if same_disk else ''}",
        )
    space = f"{free_gb:.0f} GB free"
    if free_gb < _RECOMMENDED_GB:
        return Check("disk", "note", f"{space}: a long run needs more")
    return Check("disk", "ok", space)


def check_locks(plan: RunPlan) -> str:
    """Check that this user may take the locks of this host's devices, also those that another user has created."""
    del plan
    directory = lock_directory()
    for name in {*TIMING_LOCKS, *(path.name for path in directory.iterdir())}:
        os.close(open_lock(directory / name))
    return str(directory)


def compiler() -> str | None:
    """Return the C++ compiler of this machine: `$CXX`, or the first installed of `COMPILERS`; None without one."""
    return os.environ.get("CXX") or next((name for name in COMPILERS if shutil.which(name)), None)


def check_compiler(_: RunPlan) -> str:
    """Check that a C++ compiler is installed and runs."""
    name = compiler()
    if name is None:
        raise ConfigurationError(
            "there is no C++ compiler; the language cpp and torch.compile need one", remedy="apt-get install g++"
        )
    version = output_of(name, "--version")
    if not version:
        raise ConfigurationError(
            f"the C++ compiler `{name}` does not run; the language cpp and torch.compile need one",
            where="CXX" if os.environ.get("CXX") else None,
            remedy="apt-get install g++, and unset CXX or name a compiler that runs",
        )
    return version.splitlines()[0]


def check_bubblewrap(plan: RunPlan) -> str:
    """Check that the candidates' sandbox can be started."""
    check("bubblewrap")
    used = "" if plan.config.judge.sandbox == "bubblewrap" else "; judge.sandbox is none, so the judge does not use it"
    return f"{(output_of('bwrap', '--version') or '').strip()}, tried{used}"


def check_torch(plan: RunPlan) -> Check | str:
    """Check that torch can be imported inside the sandbox, and that torch.compile works there for the run's devices.

    Without torch.compile a problem has no compiled baseline, which is the fastest one most often, and all speed-ups are
    too high. A trial takes seconds. A success is stored for the versions of torch, Python, the compilers, bubblewrap
    and the driver.
    """
    version = torch_version()
    if os.environ.get("HARNESS_JUDGE_COMMAND"):
        return Check("torch", "note", f"{version}; not tried, since HARNESS_JUDGE_COMMAND names another judge")
    if plan.config.judge.sandbox == "bubblewrap" and shutil.which("bwrap") is None:
        return Check("torch", "note", f"{version}; not tried, since bubblewrap is missing")
    if plan.thorough and _uses_gpu(plan) and _is_judging(plan):
        return Check("torch", "note", f"{version}; not tried, since a run on this GPU is in progress")
    for device in (trials := _trial_devices(plan)):
        if plan.thorough or not success_record(plan.cache, plan.config.judge.sandbox, device).is_file():
            _try_torch(plan, device, (TRIAL_TIMEOUT_S if plan.thorough else _TRIAL_S) / len(trials))
    names = " and ".join(device.name for device in trials)
    return f"{version}, imported and torch.compile tried inside the sandbox, for {names}"


def _uses_gpu(plan: RunPlan) -> bool:
    return any(parse_device(name)[0] == "cuda" for name in expand_devices(plan.chosen.devices))


def _is_judging(plan: RunPlan) -> bool:
    """Return True if a daemon runs: a trial on its GPU would disturb the measurements."""
    status = read_status(plan.workspace, DaemonStatus) if plan.workspace else None
    return status is not None and is_alive(status)


def _trial_devices(plan: RunPlan) -> list[TrialDevice]:
    """Return one device of each kind that the run uses."""
    parsed = [parse_device(name) for name in expand_devices(plan.chosen.devices)]
    on_cpu = [TrialDevice()] if any(kind == "cpu" for kind, _ in parsed) else []
    gpus = [number for kind, number in parsed if kind == "cuda"]
    return [*on_cpu, *([TrialDevice.gpu(gpus[0])] if gpus else [])]


def _try_torch(plan: RunPlan, device: TrialDevice, within_s: float) -> None:
    sandbox = plan.config.judge.sandbox
    plan.show("trying torch inside the sandbox, once for the versions that are installed")
    broken = _broken_compiler(sandbox) if device.name == "cpu" else None
    trial = TorchTrial(no_compile=broken) if broken else try_torch(sandbox, device, within_s=within_s)
    # On a slow machine, `harness start` neither fails nor repeats the trial: its judges have minutes to start.
    no_compile = f"no answer within {within_s:g} s" if trial.timed_out and plan.thorough else trial.no_compile
    if trial.no_import is None and no_compile is None:
        remember(plan.cache, sandbox, device)
        return
    with suppress(OSError):
        success_record(plan.cache, sandbox, device).unlink(missing_ok=True)
    inside = "inside the sandbox" if sandbox == "bubblewrap" else "outside any sandbox"
    if trial.no_import is not None:
        raise ConfigurationError(
            f"torch cannot be imported {inside}: {trial.no_import}",
            remedy=f"pip install torch    # into {sys.prefix}: the sandbox shows only this directory and /usr",
        )
    on_gpu = device.name == "cuda"
    raise ConfigurationError(
        f"torch.compile does not work {inside}{' on the GPU' if on_gpu else ''}: {no_compile}",
        remedy="apt-get install gcc python3-dev    # Triton needs a C compiler and the headers of this Python"
        if on_gpu
        else "apt-get install g++ python3-dev    # it needs a compiler and the headers of this Python",
    )


def _broken_compiler(sandbox: SandboxKind) -> str | None:
    """Return the reason why torch.compile has no working C++ compiler. This takes a second; the trial takes many."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.is_file():
        return f"the headers of this Python are missing: {headers}"
    compiler_path = shutil.which("g++")
    if compiler_path is None:
        return None
    try:
        compile_one_function(str(Path(compiler_path).resolve()), sandbox)
    except ConfigurationError as error:
        return error.message
    return None
