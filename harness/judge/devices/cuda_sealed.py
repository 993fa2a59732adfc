"""The clock of a CUDA device for sealed candidates: device events, read by trusted processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from harness.judge.correctness import Summed
from harness.judge.devices.cuda_memory import CudaMemory
from harness.judge.devices.interface import Batch, Calibration, Device, Memory
from harness.judge.input_data.copies import BatchedCopy
from harness.judge.input_data.layout import Layout
from harness.judge.runners import Runner
from harness.model.verdict import Trust

_PROCESS_SHARE = 0.0005
_PROCESS_NS = 40.0
"""Standard deviations between processes that run the same kernel: a share of a call, and nanoseconds."""
_MOST_CALLS, _FEWEST_CALLS = 10, 4
"""Calls of a batch: of a problem with one workload, and of one with many."""


def calls_per_batch(workloads: int) -> int:
    """Return the largest number of calls in a batch.

    The mean of n workloads counts. With 1 / sqrt(n) of the calls each, all of them together still have sqrt(n) times
    the calls of a problem with one workload.

    Args:
        workloads: number of the problem's workloads that are timed.
    """
    return max(_FEWEST_CALLS, round(_MOST_CALLS / math.sqrt(workloads)))


class EventTimedDevice(Device, Protocol):
    """A device whose trusted processes read device events. `cuda.CudaDevice` implements it."""

    def grant_timed(self, runner: Runner, *, sealed: bool) -> tuple[dict[str, object], tuple[int, ...]]:
        """Connect a trusted runner that reads device events; see `Device.grant`.

        Args:
            runner: a new runner.
            sealed: the runner makes the calls of a sealed candidate.
        """

    def memory_for(self, layout: Layout, max_sets: int) -> CudaMemory:
        """Return the judge's own copy of a workload's sets.

        Args:
            layout: the workload's inputs and outputs.
            max_sets: largest number of sets.
        """

    def timed_batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Make calls that the runner times by device events; see `Device.batch`.

        Args:
            runner: a trusted runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of each call.
        """


class SealedClock:
    """A CUDA device with the clock of its events, for candidates without host code and the trusted code that they race.

    Args:
        device: the device, which does everything but the timing.
        event_overhead_ns: overhead of events around a kernel, measured at the start of the judge.
    """

    def __init__(self, device: EventTimedDevice, event_overhead_ns: float) -> None:
        self._device = device
        self.calibration = Calibration(
            0.0,
            0.0,
            batch_ns=4_000_000,
            most_calls=_MOST_CALLS,
            call_overhead_ns=event_overhead_ns,
            separate_calls=True,
        )
        self.target, self.memory_on = device.target, device.memory_on
        self.languages = device.languages  # the `baseline/` of a problem may be in any of them
        self.summed: Summed = device.summed
        self.copy_all: BatchedCopy | None = device.copy_all
        self.record, self.runner, self.forget = device.record, device.runner, device.forget
        self.all_processors, self.timing, self.map_slots = device.all_processors, device.timing, device.map_slots
        self.start_standby, self.settle, self.reserve = device.start_standby, device.settle, device.reserve
        self.after_check = device.after_check
        self.loaded, self.place = device.loaded, device.place
        self.untried, self.conclude, self.temporary_memory = device.untried, device.conclude, device.temporary_memory
        self.recalibrate, self.clock, self.close = device.recalibrate, device.clock, device.close

    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """Connect a trusted runner that reads device events; see `Device.grant`.

        Args:
            runner: a new runner.
            sealed: the runner makes the calls of a sealed candidate.
        """
        return self._device.grant_timed(runner, sealed=sealed)

    def memory(self, layout: Layout, workloads: int = 1) -> CudaMemory:
        """Return the judge's own copy of a workload's sets.

        Args:
            layout: the workload's inputs and outputs.
            workloads: number of the problem's workloads that are timed.
        """
        return self._device.memory_for(layout, calls_per_batch(workloads))

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Make calls that the trusted runner times by device events; see `Device.batch`.

        Args:
            runner: a trusted runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of each call.
        """
        return self._device.timed_batch(runner, memory, slots, within_s)

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """Return the standard deviation of ln(latency) between processes, as measured for events (docs/clock.md).

        Args:
            latency_ns: latency of a call.
            bound_ns: not used.
        """
        del bound_ns
        return math.hypot(_PROCESS_NS / latency_ns, _PROCESS_SHARE)

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Return SEALED: events are trusted for calls of any duration.

        Args:
            latency_ns: not used.
            claimed_ns: not used.
        """
        del latency_ns, claimed_ns
        return Trust.SEALED
