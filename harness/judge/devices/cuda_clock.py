"""A clock of a CUDA device: one call at a time in memory that the judge controls (ADR 30).

Both clocks of a device differ in how they time a call (`cuda_timers`), and share everything else.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.judge.channel import ChannelClosed, ChannelTimeout, MalformedRecord
from harness.judge.devices.cuda_conduct import Conduct
from harness.judge.devices.cuda_cycle import CudaConnection, Cycle
from harness.judge.devices.cuda_hardware import BUSY_NS, CudaHardware
from harness.judge.devices.cuda_memory import CudaMemory
from harness.judge.devices.cuda_placements import PlacementPool, Placements
from harness.judge.devices.cuda_runners import CudaRunners
from harness.judge.devices.cuda_statistics import middle_mean, process_offset_ns
from harness.judge.devices.cuda_timers import CallTimer, JudgesTimer
from harness.judge.devices.interface import Batch, Clock, Reading, RunnerTrust, closing_connection
from harness.judge.input_data.layout import Layout, calibration_layout
from harness.judge.isolation.resource_limits import GIB
from harness.judge.memory_plan import MemoryPlan, fitting_sets, placement_count
from harness.judge.runners import NoDeviceMemory, Runner, RunnerFailed
from harness.judge.shared_memory import Region
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage
from harness.model.verdict import Trust, Verdict
from harness.runner import wire
from harness.runner.doorbell import Request, create_page
from harness.runner.driver import CudaError
from harness.runner.messages import DeviceMemory, Load, Program, ReleaseMemory

_WINDOW_BYTES = 32 * GIB
"""Device addresses that a runner reserves; physical memory is mapped there for each workload."""
_SCALAR_BYTES = 1 << 20
_CALIBRATIONS = 12
"""Batches of empty calls; the first is not counted."""
_LOAD_S = 120.0
"""Seconds in which a runner loads a program or prepares a workload."""


class CallMemory:
    """Memory that the clocks of a device give to runners.

    Args:
        unit: granularity of physical memory in bytes.
    """

    def __init__(self, unit: int) -> None:
        self.pool = PlacementPool(unit)
        self.scalars = Region(_SCALAR_BYTES, sealed=True)
        self._is_open = True

    def close(self) -> None:
        """Release all memory that no runner has; once, although each clock calls it."""
        if self._is_open:
            self._is_open = False
            self.pool.close()
            self.scalars.close()


class CudaClock(Clock):
    """One clock of a GPU; see the protocol `Clock`.

    Args:
        hardware: the GPU.
        runners: its runners.
        call_memory: shared by the clocks of the GPU.
        timer: times a call.
        short_kernel_ns: reading of a short kernel by events in the judge's own process.
    """

    separate_calls = True

    def __init__(
        self,
        hardware: CudaHardware,
        runners: CudaRunners,
        call_memory: CallMemory,
        timer: CallTimer,
        short_kernel_ns: float = 0.0,
    ) -> None:
        self.hardware, self.runners = hardware, runners
        self._call_memory, self._timer, self._short_kernel_ns = call_memory, timer, short_kernel_ns
        self.calibration = timer.calibration
        self.work_outlasts_stop = (
            not timer.reads_events
        )  # a candidate's host code may enqueue work before it is stopped
        self.usual_probe_ns = float(BUSY_NS)
        """Duration of the probe while a runner is idle."""

    def facts(self) -> dict[str, object]:
        """Return the overheads of the clock, for the entry's record of the device."""
        return self._timer.facts()

    def open(self, runner: Runner, program: Program, trust: RunnerTrust) -> CudaConnection:
        """Load a program into a runner with a new doorbell; see `Clock.open`.

        Args:
            runner: a new runner.
            program: what it loads.
            trust: whose code it executes.
        """
        connection = CudaConnection(runner, trust, create_page(), Conduct(self.usual_probe_ns))
        try:
            trusted = None
            if self._timer.reads_events:
                cubin = runner.stage / "trusted.cubin"
                cubin.write_bytes(self.hardware.cubin)
                trusted = runner.inside(cubin)
            scalars = self._call_memory.scalars
            load = Load(program, DeviceMemory(_WINDOW_BYTES, scalars.bytes), trusted)
            record = runner.ask(load, wire.Code.LOADED, _LOAD_S, (scalars.descriptor, connection.page))
        except BaseException:
            self.close(connection)
            raise
        if record.claimed_ns:  # the runner's readings of events are corrected by their difference from the judge's
            connection.offset_ns = process_offset_ns(record.claimed_ns, self._short_kernel_ns)
        return connection

    def prepare(
        self,
        connection: CudaConnection,
        layout: Layout,
        slots: int,
        *,
        variant: str = "",
        launches: Mapping[str, Any] | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        """Replace a runner's placements by those of its next workload; see `Clock.prepare`.

        Args:
            connection: an open runner.
            layout: the workload's inputs and outputs.
            slots: number of sets that the judge uses at a time; with 1 the runner has few placements.
            variant: variant of the reference.
            launches: launch plan of a sealed solution.
            plan: the workload's use of memory.
        """
        placements = self._place(connection, layout, slots, plan)
        message = layout.message(placements.count, variant, launches, placements.bytes)
        descriptors = placements.export()
        try:
            connection.runner.ask(message, wire.Code.READY, _LOAD_S, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    @timed_as(JudgeStage.MEMORY)
    def _place(self, connection: CudaConnection, layout: Layout, slots: int, plan: MemoryPlan | None) -> Placements:
        """Give a runner new placements in place of those that it has.

        Raises:
            NoDeviceMemory: there is no memory for them.
        """
        connection.drop_memory()
        self.runners.wait_for_ends()
        connection.conduct, connection.has_served = Conduct(self.usual_probe_ns), False
        size = layout.input_stride + layout.output_stride
        count = plan.placements if plan else placement_count(size, torch.cuda.mem_get_info()[0], slots)
        pool = self._call_memory.pool
        try:
            is_timed = slots > 1 or fitting_sets(layout) == 1
            placements = pool.take(layout, count) if is_timed else pool.take_few(layout, count)
        except (CudaError, torch.OutOfMemoryError) as error:
            raise NoDeviceMemory(error) from error
        connection.placements = placements
        return placements

    def release_memory(self, connection: CudaConnection) -> None:
        """Let a runner give back its cached blocks. A candidate may keep them: its process then holds them visibly.

        Args:
            connection: an open runner.
        """
        connection.runner.ask(ReleaseMemory(), wire.Code.READY, _LOAD_S)

    def untried(self, connection: CudaConnection) -> int:
        """Return the number of placements at which a runner has made no call yet."""
        return len(connection.placements.untried) if connection.placements is not None else 0

    def conclude(self, connection: CudaConnection) -> None:
        """Check that a runner did no work between its calls on this workload.

        Raises:
            RunnerFailed: it began calls before their requests.
        """
        connection.conduct.conclude()

    def most_calls(self, workloads: int) -> int:
        """Return the largest number of calls in a batch; see `CallTimer`.

        Args:
            workloads: number of the problem's workloads that are timed.
        """
        return self._timer.most_calls(workloads)

    @timed_as(JudgeStage.MEMORY)
    def memory(self, layout: Layout, workloads: int = 1, plan: MemoryPlan | None = None) -> CudaMemory:
        """Return the judge's own copy of a workload's sets.

        Args:
            layout: the workload's inputs and outputs.
            workloads: number of the problem's workloads that are timed.
            plan: the workload's use of memory.
        """
        sets = min(self.most_calls(workloads), plan.sets if plan else fitting_sets(layout))
        return CudaMemory(layout, sets, self._call_memory.scalars)

    def time_calls(
        self, connection: CudaConnection, memory: CudaMemory, slots: Sequence[int], within_s: float
    ) -> Batch:
        """Make calls at random placements, each timed apart; see `Clock.time_calls`.

        A runner without host code of a candidate is not stopped between batches.

        Args:
            connection: a runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of each call.
        """
        assert connection.placements is not None  # noqa: S101 - the runner was prepared
        runner, count = connection.runner, len(slots)
        identity, placements = secrets.randbits(62), connection.placements.draw(count)
        held_calls = self._timer.held_calls(connection, count)
        self.runners.wait_for_ends()
        with self.hardware.cores.pinned(connection, runner.processes.pin_main_thread):
            runner.processes.resume()
            try:
                runner.channel.check_nothing_unread()
                runner.channel.send_call(identity, ())
                readings = [
                    self._timer.time_call(connection, memory, slot, place, hold=index in held_calls, within_s=within_s)
                    for index, (slot, place) in enumerate(zip(slots, placements, strict=True))
                ]
                connection.request(Request.END, time.monotonic() + _LOAD_S)
                done = runner.channel.expect(wire.Code.DONE, time.monotonic() + _LOAD_S)
            except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
                raise runner.failure(error, within_s) from None
            runner.accept(done)
            if done.call != identity:
                raise RunnerFailed(Verdict.REWARD_HACK, "forged an answer: it is not the answer to this call")
            if not self._timer.reads_events:
                runner.stop()
        disturbed = self.hardware.was_disturbed()
        self._check_after_batch(connection, memory, readings)
        counted = [reading for reading in readings[1:] if not reading.was_held] or readings[:1]
        ns = round(count * middle_mean([reading.ns for reading in counted]))
        claimed = round(count * statistics.fmean(reading.claimed_ns for reading in counted))
        return Batch(ns=ns, claimed_ns=claimed, disturbed_ns=ns if disturbed else 0, readings=tuple(counted))

    def _check_after_batch(self, connection: CudaConnection, memory: CudaMemory, readings: Sequence[Reading]) -> None:
        """Check that the runner changed nothing but the outputs of its calls, and that its device work has ended.

        Raises:
            RunnerFailed: inputs or captured outputs were written, calls began early, or the device remains busy.
        """
        inputs_changed, outputs_changed_late = memory.find_changes(connection)
        if connection.trust is RunnerTrust.REFERENCE:
            return
        if inputs_changed:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, "wrote to an input: inputs are read-only")
        if outputs_changed_late:
            raise RunnerFailed(Verdict.REWARD_HACK, "outputs changed after the call was answered")
        for reading in readings:
            connection.conduct.add(reading)
        self.hardware.must_be_idle()

    def close(self, connection: CudaConnection) -> None:
        """End a runner, and with it its mappings, and release its memory."""
        self.hardware.cores.allow_sleep()
        self.runners.end(connection.runner)
        connection.drop_memory()
        os.close(connection.page)

    def release(self) -> None:
        """Release placements and scalars."""
        self._call_memory.close()

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """Return the standard deviation of ln(latency) between processes; see `CallTimer`.

        Args:
            latency_ns: latency of a call.
            bound_ns: lower bound of the call's time on the device; 0.0 if it is not known.
        """
        return self._timer.process_error(latency_ns, bound_ns)

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Return the trust in a reading; see `CallTimer`.

        Args:
            latency_ns: latency of a call.
            claimed_ns: not used.
        """
        del claimed_ns
        return self._timer.trust(latency_ns)


def calibrate_judges_clock(clock: CudaClock, timer: JudgesTimer, cycle: Cycle) -> None:
    """Measure the overhead of a request with empty calls in a clean runner.

    The overhead is the 5th percentile of the calls: a host that is slow for a while must not increase what is
    subtracted from later calls.

    Args:
        clock: the judge's own clock.
        timer: of this clock; it gets the calibration.
        cycle: measures the probe.
    """
    connection = clock.open(clock.runners.clean(), Program("known"), RunnerTrust.REFERENCE)
    with closing_connection(clock, connection):
        layout = calibration_layout(3, 64)
        clock.prepare(connection, layout, clock.most_calls(1))
        memory = clock.memory(layout)
        slots = range(memory.capacity)
        batches = [clock.time_calls(connection, memory, slots, _LOAD_S) for _ in range(_CALIBRATIONS)]
        readings = [reading for batch in batches[1:] for reading in batch.readings]
        overhead_ns = statistics.quantiles((reading.ns - reading.claimed_ns for reading in readings), n=20)[0]
        dispatch_ns = statistics.median(reading.claimed_ns for reading in readings)
        clock.calibration = timer.calibration = replace(
            timer.calibration, call_overhead_ns=max(0.0, overhead_ns), dispatch_ns=dispatch_ns
        )
        timer.calibrated_at = time.monotonic()
        clock.usual_probe_ns = cycle.idle_probe_ns(connection, time.monotonic() + _LOAD_S)
