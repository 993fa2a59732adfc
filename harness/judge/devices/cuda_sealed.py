"""The clock of a CUDA device for sealed candidates: what trusted processes read of the device's events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from harness.judge.batched_copy import CopyAll
from harness.judge.correctness import Summed
from harness.judge.devices.cuda_memory import CudaMemory
from harness.judge.devices.interface import Batch, Calibration, Device, Memory
from harness.judge.input_data.layout import Layout
from harness.judge.runners import Runner
from harness.model.verdict import Trust

MOST_AROUND_NS = 2_400.0
"""Most that an event pair adds to a single call, by CUPTI (docs/clock.md): to subtract more would flatter."""
_PROCESS_SHARE = 0.0005
_PROCESS_NS = 40.0
"""Standard deviations between processes that run the same kernel: a share of a call, and nanoseconds."""


class EventTimedDevice(Device, Protocol):
    """A device whose trusted processes read its own events (`cuda.CudaDevice`)."""

    def grant_timed(self, runner: Runner, *, sealed: bool) -> tuple[dict[str, object], tuple[int, ...]]:
        """Like `grant`, for a trusted process that reads the device's events."""

    def memory_for(self, layout: Layout, most: int) -> CudaMemory:
        """Memory for at most so many sets of one workload."""

    def timed_batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Make calls that the runner times by the device's events."""

    def loaded(self, runner: Runner, short_kernel_ns: int) -> None:
        """See `Device`."""

    def place(self, runner: Runner, layout: Layout, slots: int) -> tuple[dict[str, object], tuple[int, ...]]:
        """See `Device`."""

    def untried(self, runner: Runner) -> int:
        """See `Device`."""

    def conclude(self, runner: Runner) -> None:
        """See `Device`."""


class SealedClock:
    """The same device by its events: for a candidate that is device code only, and for the trusted code it races."""

    def __init__(self, device: EventTimedDevice, pair_overhead_ns: float) -> None:
        """`pair_overhead_ns`: what events around one kernel read beyond its duration, measured just now."""
        self._device = device
        around_ns = min(MOST_AROUND_NS, pair_overhead_ns)
        self.calibration = Calibration(
            0.0, 0.0, batch_ns=4_000_000, most_calls=10, around_ns=around_ns, separate_calls=True
        )
        self.target, self.memory_on = device.target, device.memory_on
        self.languages = device.languages  # a problem's `baseline/` is raced here in any of them
        self.summed: Summed = device.summed
        self.copy_all: CopyAll | None = device.copy_all
        self.record, self.runner, self.forget = device.record, device.runner, device.forget
        self.all_processors, self.timing, self.each = device.all_processors, device.timing, device.each
        self.start_standby, self.settle, self.reserve = device.start_standby, device.settle, device.reserve
        self.loaded, self.place = device.loaded, device.place
        self.untried, self.conclude, self.aside = device.untried, device.conclude, device.aside
        self.recalibrate, self.clock, self.close = device.recalibrate, device.clock, device.close

    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """With the trusted kernels."""
        return self._device.grant_timed(runner, sealed=sealed)

    def memory(self, layout: Layout) -> CudaMemory:
        """The judge's own copy of a workload's sets."""
        return self._device.memory_for(layout, self.calibration.most_calls)

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """The events' readings, as the trusted process told them."""
        return self._device.timed_batch(runner, memory, slots, within_s)

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """As measured for events around a kernel (docs/clock.md)."""
        del bound_ns
        return math.hypot(_PROCESS_NS / latency_ns, _PROCESS_SHARE)

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Events are trusted for calls of any length."""
        del latency_ns, claimed_ns
        return Trust.SEALED
