"""A CUDA device: its state, its memory, the judge's own kernels on it, and the processors near it."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager

import torch

from harness.judge.clock import now_ns
from harness.judge.correctness import Summed
from harness.judge.devices.cuda_memory import DeviceBatchedCopy, DeviceComparison
from harness.judge.devices.cuda_placements import reserve_memory, reserved_bytes
from harness.judge.devices.interface import DeviceHardware
from harness.judge.devices.nvml import Nvml, Sample
from harness.judge.devices.processors import TimingCores
from harness.judge.input_data.copies import BatchedCopy
from harness.judge.isolation.resource_limits import GIB
from harness.judge.memory_plan import MemoryState
from harness.judge.runners import RunnerFailed
from harness.model.languages import Language, languages_on
from harness.model.verdict import Verdict
from harness.runner.launcher import TrustedKernels
from harness.sol.hardware import target_name
from harness.workspace import timing_lock

_SAMPLE_AGE_S = 0.05
"""A sample of the device's state counts for batches that end up to this time after it. A sample may take 1 ms or more,
and a batch takes about 5 ms."""
_PROBE_CYCLES = 40_000
BUSY_NS = 400_000
"""A kernel of 20 us that takes this long shares the GPU: another context may run first."""
_IDLE_WITHIN_S = 0.2
_KEPT_CACHE_BYTES = GIB
"""Cached memory beyond the reserve that is not worth the time of giving it back."""


class CudaHardware(DeviceHardware):
    """One GPU; see the protocol `DeviceHardware`.

    Args:
        nvml: connection to the GPU.
        lock: file descriptor of the device's lock, which this object closes.
        cubin: the trusted kernels.
    """

    memory_on = torch.device("cuda")
    languages: tuple[Language, ...] = languages_on("cuda")

    def __init__(self, nvml: Nvml, lock: int, cubin: bytes) -> None:
        self.nvml, self._lock, self.cubin = nvml, lock, cubin
        self.target = target_name(nvml.name)
        reserve_memory()
        torch.backends.cudnn.allow_tf32 = False  # expected outputs are computed in the precision of the problem
        self.trusted = TrustedKernels(cubin)
        self.summed: Summed = DeviceComparison(self.trusted)
        self.copy_all: BatchedCopy | None = DeviceBatchedCopy(self.trusted)
        self.gpus = nvml.processors_of_gpus()
        self.cores = TimingCores(frozenset(os.sched_getaffinity(0)), self.gpus, nvml.index)
        self.probe = self.trusted.spin(_PROBE_CYCLES)
        """A kernel of about 20 us."""
        self._throttled: set[str] = set()
        self._max_other_processes = 0
        self._sample = nvml.sample()

    def facts(self) -> dict[str, object]:
        """Return name, id, driver, current clocks, and throttling and other processes since the last call."""
        sample = self.nvml.sample()
        throttled, self._throttled = sorted(self._throttled), set()
        other_processes = max(sample.other_processes, self._max_other_processes)
        self._max_other_processes = 0
        return {
            "name": self.nvml.name,
            "id": self.nvml.uuid,
            "driver": self.nvml.driver,
            "cuda": torch.version.cuda,
            "clocks_mhz": {"sm": sample.sm_mhz, "memory": sample.memory_mhz},
            "power_w": sample.power_w,
            "throttle": throttled,
            "others": other_processes,
        }

    def timing(self) -> AbstractContextManager[None]:
        """Hold the timing lock: shared with judges that also have separate cores, exclusive on this host otherwise."""
        return timing_lock.timing_apart() if self.cores.are_apart else timing_lock.timing()

    def was_disturbed(self) -> bool:
        """Return true if the device was throttled or used by another process since the last call of this method."""
        before, self._sample = self._sample, self.nvml.sample(_SAMPLE_AGE_S)
        samples = before, self._sample
        self._throttled.update(*(sample.throttle for sample in samples))
        self._max_other_processes = max(self._max_other_processes, *(sample.other_processes for sample in samples))
        return any(sample.throttle or sample.other_processes for sample in samples)

    def must_be_idle(self) -> None:
        """Check that the device work of a stopped runner has ended, because it would slow the other side.

        Raises:
            RunnerFailed: the device remains busy, and no other process uses it.
        """
        sample: Sample = self._sample
        end = time.monotonic() + _IDLE_WITHIN_S
        while True:
            begin = now_ns()
            self.probe.run()
            torch.cuda.synchronize()
            if now_ns() - begin < BUSY_NS or sample.other_processes:
                return
            if time.monotonic() > end:
                raise RunnerFailed(Verdict.REWARD_HACK, "its device work went on after the batch had ended")

    def memory_state(self) -> MemoryState:
        """Return the use of the device's memory."""
        free, total = torch.cuda.mem_get_info()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        processes = self.nvml.process_memory()
        foreign = None
        if processes is not None:
            foreign = sum(size for pid, size in processes.items() if not self.nvml.is_own_process(pid))
        return MemoryState(total, free, cached, processes, foreign)

    def release_caches(self, *, keep_reserve: bool = True) -> None:
        """Give cached memory back to the device.

        Args:
            keep_reserve: keep what is reserved so that no candidate can exhaust it.
        """
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if not keep_reserve:
            torch.cuda.empty_cache()
        elif cached > reserved_bytes() + _KEPT_CACHE_BYTES:
            torch.cuda.empty_cache()
            reserve_memory()

    def close(self) -> None:
        """Release processors, the connection and the lock."""
        self.cores.allow_sleep()
        self.nvml.close()
        os.close(self._lock)
