"""State of a GPU by NVML: name, clocks, throttling, other processes. Nothing here changes a setting."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

from harness.errors import ConfigurationError
from harness.judge.isolation.process_tree import is_descendant

# Source: nvml.h, nvmlClocksEventReasons. These reasons slow the SMs; idle (1) and application clocks (2) do not.
_THROTTLE = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}

_WORD_BITS = 64
"""Bits of a word of NVML's processor masks."""


@dataclass(frozen=True)
class Sample:
    """State of the device at one moment."""

    sm_mhz: int
    memory_mhz: int
    throttle: tuple[str, ...]
    other_processes: int
    """Number of compute processes that are neither this process nor its descendants."""
    power_w: int


class Nvml:
    """NVML's connection to one GPU.

    Args:
        ordinal: number of the GPU in CUDA, among those in CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigurationError: the package nvidia-ml-py is missing.
    """

    def __init__(self, ordinal: int) -> None:
        try:
            import pynvml  # noqa: PLC0415 - only where there is a GPU
        except ImportError as error:
            raise ConfigurationError(
                "the device cuda needs the package nvidia-ml-py",
                remedy="pip install 'kernel-harness[gpu13]'    # [gpu] for CUDA 12",
            ) from error
        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        number = visible.split(",")[ordinal] if visible else str(ordinal)
        by_uuid = number.startswith(("GPU-", "MIG-"))
        self._handle = (
            pynvml.nvmlDeviceGetHandleByUUID(number) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(int(number))
        )
        self.name = str(pynvml.nvmlDeviceGetName(self._handle))
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        self.index = int(pynvml.nvmlDeviceGetIndex(self._handle))
        """Number among all GPUs of this host, independent of CUDA_VISIBLE_DEVICES."""
        self._own_by_pid: dict[int, bool] = {}
        self._sample: Sample | None = None
        self._sampled_at = 0.0

    def processors_of_gpus(self) -> list[frozenset[int]]:
        """Return for each GPU of this host the processors on its NUMA node; an empty set if the driver reports none."""
        nvml, words = self._nvml, -(-(os.cpu_count() or 1) // _WORD_BITS)
        near: list[frozenset[int]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            mask: list[int] = []
            with contextlib.suppress(nvml.NVMLError):
                mask = list(nvml.nvmlDeviceGetCpuAffinity(nvml.nvmlDeviceGetHandleByIndex(index), words))
            bits = sum(word << (_WORD_BITS * number) for number, word in enumerate(mask))
            near.append(frozenset(number for number in range(bits.bit_length()) if bits >> number & 1))
        return near

    def sample(self, max_age_s: float = 0.0) -> Sample:
        """Return the state of the GPU; a new sample takes 0.1 to 0.8 ms.

        Args:
            max_age_s: the last sample is returned again if it is not older than this.
        """
        if self._sample is None or time.monotonic() - self._sampled_at > max_age_s:
            self._sample, self._sampled_at = self._new_sample(), time.monotonic()
        return self._sample

    def _new_sample(self) -> Sample:
        nvml = self._nvml
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        other_processes = 0
        with contextlib.suppress(nvml.NVMLError):
            running = nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            other_processes = sum(1 for process in running if not self.is_own_process(int(process.pid)))
        return Sample(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM),
            throttle=tuple(name for bit, name in _THROTTLE.items() if reasons & bit),
            other_processes=other_processes,
            power_w=nvml.nvmlDeviceGetPowerUsage(self._handle) // 1000,
        )

    def memory_bytes(self) -> tuple[int, int]:
        """Return the free and the total memory of the GPU in bytes."""
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return int(memory.free), int(memory.total)

    def process_memory(self) -> dict[int, int] | None:
        """Return the bytes of device memory of each compute process by its id; None if the driver does not report them.

        Some virtual machines and containers hide them.
        """
        with contextlib.suppress(self._nvml.NVMLError):
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            if running and all(process.usedGpuMemory is not None for process in running):
                return {int(process.pid): int(process.usedGpuMemory) for process in running}
        return None

    def is_own_process(self, pid: int) -> bool:
        """Return true if a process is this process, is its descendant, or has just ended."""
        if pid not in self._own_by_pid:
            descends = is_descendant(pid, os.getpid())
            if descends is None:
                return True
            self._own_by_pid[pid] = descends
        return self._own_by_pid[pid]

    def close(self) -> None:
        """Shut down the connection to the driver."""
        self._nvml.nvmlShutdown()
