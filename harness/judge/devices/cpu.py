"""The CPU of this host as a device. A lock of the host permits one judge at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from harness.judge.devices.cpu_clock import CpuClock
from harness.judge.devices.cpu_hardware import NICE, CpuHardware
from harness.judge.devices.cpu_runners import CpuRunners
from harness.judge.devices.interface import Device
from harness.judge.devices.lock import take_device_lock
from harness.judge.isolation.cgroup_freezer import freezer_works
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.runners import RunnerPlan
from harness.model.config import SandboxKind


def open_cpu(*, cache: Path, sandbox: SandboxKind) -> Device:
    """Lock the CPU and calibrate its clock.

    Args:
        cache: directory of compiled code and calibrations.
        sandbox: isolation of the runners.

    Raises:
        ConfigurationError: another judge holds the CPU.
    """
    lock = take_device_lock("cpu", "cpu")
    scratch = Path(tempfile.mkdtemp(prefix="kernel-harness-judge-"))
    try:
        allowed = frozenset(os.sched_getaffinity(0))
        hardware = CpuHardware(lock, cache=cache, scratch=scratch)
        limits = SandboxLimits(cpus=allowed, nice=NICE, address_space_bytes=16 * GIB)
        pinned = frozenset({hardware.runner_processor})
        plan = RunnerPlan(sandbox, limits, scratch, pinned=pinned, freezes=freezer_works())
        runners = CpuRunners(plan, cache)
        clock = CpuClock(hardware, runners, cache)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return Device(hardware, runners, clock, clock)
