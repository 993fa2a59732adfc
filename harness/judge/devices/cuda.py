"""A CUDA device: one call at a time in memory that the judge controls, and two clocks.

**Bounded**: the judge's own clock, from the request for a call until secret positions of its outputs have arrived.
**Sealed**: device events around each call, read by a trusted process. It runs no host code of the candidate, only that
of the problem. ADR 30 has the protocol, and docs/clock.md has the measurements.
"""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import tempfile
from pathlib import Path

import torch

from harness.errors import ConfigurationError
from harness.judge.build.cuda_builder import trusted_cubin
from harness.judge.devices.cuda_clock import CallMemory, CudaClock, calibrate_judges_clock
from harness.judge.devices.cuda_cycle import Cycle
from harness.judge.devices.cuda_environment import device_nodes, require_no_mps, runner_environment
from harness.judge.devices.cuda_hardware import CudaHardware
from harness.judge.devices.cuda_runners import CudaRunners, runners_ahead
from harness.judge.devices.cuda_timers import EventTimer, JudgesTimer
from harness.judge.devices.event_overhead import event_overhead_us
from harness.judge.devices.interface import Device
from harness.judge.devices.lock import take_device_lock
from harness.judge.devices.nvml import Nvml
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.runners import RunnerPlan
from harness.model.config import SandboxKind
from harness.runner.device_memory import granularity


def open_cuda(ordinal: int, *, cache: Path, sandbox: SandboxKind) -> Device:
    """Lock a CUDA device and calibrate its clocks.

    Args:
        ordinal: number of the device among those in CUDA_VISIBLE_DEVICES.
        cache: directory of compiled code.
        sandbox: isolation of the runners.

    Raises:
        ConfigurationError: there is no such device, a library is missing, or another judge holds the device.
        HostFaultError: MPS is active.
    """
    require_no_mps()
    nvml = Nvml(ordinal)
    os.environ["CUDA_VISIBLE_DEVICES"] = nvml.uuid  # the only device of this process and of all runners, now number 0
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "no CUDA device is usable: torch finds none",
            where="--device cuda",
            remedy="install a driver and a CUDA build of torch, or use --device cpu",
        )
    lock = take_device_lock(f"cuda-{nvml.uuid}", f"cuda:{ordinal} ({nvml.name})")
    scratch = Path(tempfile.mkdtemp(prefix="kernel-harness-judge-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    hardware = CudaHardware(nvml, lock, trusted_cubin(cache))
    inductor = cache / "inductor-cuda"
    inductor.mkdir(parents=True, exist_ok=True)
    plan = RunnerPlan(
        sandbox=sandbox,
        limits=SandboxLimits(cpus=hardware.cores.of_runners, address_space_bytes=None, memory_bytes=32 * GIB),
        scratch=scratch,
        env=runner_environment(nvml.uuid, torch.cuda.get_device_capability()),
        devices=device_nodes(),
        warms=True,
        imports_apart=hardware.cores.are_apart,
    )
    ahead = runners_ahead(len(hardware.gpus), torch.cuda.mem_get_info()[1])
    runners, memory = CudaRunners(plan, inductor, ahead), CallMemory(granularity())
    cycle = Cycle(hardware.trusted, hardware.probe)
    short_kernels_us = hardware.trusted.short_kernels_us()
    events = EventTimer(cycle, event_overhead_us(hardware.trusted, short_kernels_us) * 1e3)
    bounded = JudgesTimer(cycle)
    clock = CudaClock(hardware, runners, memory, bounded)
    sealed_clock = CudaClock(hardware, runners, memory, events, statistics.fmean(short_kernels_us) * 1e3)
    calibrate_judges_clock(clock, bounded, cycle)
    sealed_clock.usual_probe_ns = clock.usual_probe_ns
    return Device(hardware, runners, clock, sealed_clock)
