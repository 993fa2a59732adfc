"""The CPU of this host: its processors, and the judge's own work on them."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from harness.judge.correctness import Summed, summed
from harness.judge.devices.cpu_copies import HostBatchedCopy
from harness.judge.devices.cpu_scheduling import Steal, processor_name, worker_count, worker_pool
from harness.judge.devices.interface import DeviceHardware, T
from harness.judge.input_data.copies import BatchedCopy
from harness.judge.native import load_native
from harness.judge.stages import divided_among_threads
from harness.model.languages import Language, languages_on
from harness.workspace import timing_lock

NICE = -5
"""Niceness of judge and runners."""


class CpuHardware(DeviceHardware):
    """The CPU of this host; see the protocol `DeviceHardware`.

    Args:
        lock: file descriptor of the device's lock, which this object closes.
        cache: directory of compiled code.
        scratch: directory of the runners, which this object removes.
    """

    target = "cpu"
    memory_on = torch.device("cpu")
    languages: tuple[Language, ...] = languages_on("cpu")

    def __init__(self, lock: int, *, cache: Path, scratch: Path) -> None:
        self._lock, self._scratch = lock, scratch
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # a judge may be ended before `close`
        allowed = sorted(os.sched_getaffinity(0))
        self.runner_processor = allowed[-1]
        """The processor of the timed runner."""
        self.has_own_processor = len(allowed) > 1
        """True if the judge has another processor than the timed runner, so that it may poll."""
        self._threads = torch.get_num_threads()
        torch.zeros(1 << 20).add_(1)  # starts torch's worker threads while every processor is allowed
        torch.set_num_threads(1)  # the judge's operations are shorter than the wake-up of workers
        if self.has_own_processor:
            os.sched_setaffinity(0, set(allowed[:-1]))
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        self._pool = worker_pool(allowed)
        self.steal = Steal()
        self.native = load_native(cache)
        self.summed: Summed = self.native.summed if self.native is not None else summed
        self.copy_all: BatchedCopy | None = None
        if self.native is not None:
            self.copy_all = HostBatchedCopy(self.native, self.map_slots, worker_count(allowed))
        self.flushes_caches = self.native is not None and self.native.flushes
        self.digest = hashlib.sha256(f"{processor_name()}{platform.node()}".encode()).hexdigest()[:12]
        """Identifies this host and its processor."""

    def facts(self) -> dict[str, object]:
        """Return name, stable id, and the conditions of timings."""
        return {
            "name": processor_name(),
            "id": f"CPU-{self.digest}",
            "processors": os.cpu_count(),
            "pinned": self.runner_processor,
            "cold": self.flushes_caches,
        }

    @contextlib.contextmanager
    def all_processors(self) -> Iterator[None]:
        """Use all of torch's worker threads inside this context, in which runners are stopped."""
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def timing(self) -> AbstractContextManager[None]:
        """Hold the timing lock exclusively, because other work uses the same processors and memory."""
        return timing_lock.timing()

    def map_slots(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Do work for each slot on several processors, also on the runners', which are stopped.

        Args:
            work: called with the number of a slot.
            slots: numbers of the slots.
        """
        if self._pool is None or len(slots) < 2:
            return [work(slot) for slot in slots]
        with divided_among_threads() as counted:
            futures = [self._pool.submit(counted(work), slot) for slot in slots]
            wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """Release threads, files and the lock."""
        if self._pool is not None:
            self._pool.shutdown()
        self.steal.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._lock)
