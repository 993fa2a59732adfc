"""State of a GPU as its driver reports it: name, clocks, throttling, other processes. Changes no setting."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ConfigurationError

# nvml.h, nvmlClocksEventReasons: those that slow the SMs. Idle (1) and application clocks (2) do not count.
_THROTTLE = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


_WORD_BITS = 64
"""Of a mask of processors, as NVML gives it."""


@dataclass(frozen=True)
class Sample:
    """One look at the device. Clocks in MHz."""

    sm_mhz: int
    memory_mhz: int
    throttle: tuple[str, ...]
    others: int
    """Compute processes that are not ours."""
    power_w: int


class Nvml:
    """One GPU, by CUDA's ordinal."""

    def __init__(self, ordinal: int) -> None:
        try:
            import pynvml  # noqa: PLC0415 - only where there is a GPU
        except ImportError as error:
            raise ConfigurationError(
                "the device cuda needs the package nvidia-ml-py",
                remedy="pip install 'kernel-harness[gpu]'   (CUDA 12; [gpu13] for CUDA 13)",
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
        """Among all GPUs of this host, whatever CUDA_VISIBLE_DEVICES shows."""
        self._known: dict[int, bool] = {}

    def processors_of_gpus(self) -> list[frozenset[int]]:
        """Return for each GPU of this host the processors near it; empty where the driver does not know them."""
        nvml, words = self._nvml, -(-(os.cpu_count() or 1) // _WORD_BITS)
        near: list[frozenset[int]] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            mask: list[int] = []
            with contextlib.suppress(nvml.NVMLError):
                mask = list(nvml.nvmlDeviceGetCpuAffinity(nvml.nvmlDeviceGetHandleByIndex(index), words))
            bits = sum(word << (_WORD_BITS * number) for number, word in enumerate(mask))
            near.append(frozenset(number for number in range(bits.bit_length()) if bits >> number & 1))
        return near

    def look(self) -> Sample:
        """Clocks, throttle reasons and strangers right now; about 0.1 ms."""
        nvml = self._nvml
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        others = 0
        with contextlib.suppress(nvml.NVMLError):
            running = nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            others = sum(1 for process in running if not self._is_ours(int(process.pid)))
        return Sample(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM),
            throttle=tuple(name for bit, name in _THROTTLE.items() if reasons & bit),
            others=others,
            power_w=nvml.nvmlDeviceGetPowerUsage(self._handle) // 1000,
        )

    def _is_ours(self, pid: int) -> bool:
        """Return true if a process is this one, descends from it, or has just ended."""
        if pid not in self._known:
            at = pid
            while at not in (0, 1, os.getpid()):
                try:
                    line = Path(f"/proc/{at}/stat").read_text()
                except OSError:
                    return True
                at = int(line[line.rindex(")") + 2 :].split()[1])
            self._known[pid] = at == os.getpid()
        return self._known[pid]

    def close(self) -> None:
        """Let go of the library."""
        self._nvml.nvmlShutdown()
