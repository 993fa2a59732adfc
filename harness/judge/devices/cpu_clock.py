"""The clock of the CPU: batches of calls on shared memory, by a runner that is stopped while the judge works."""

from __future__ import annotations

import contextlib
import platform
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.judge import handshake
from harness.judge.channel import ChannelClosed, ChannelTimeout, MalformedRecord, RunnerRecord, parse_record
from harness.judge.clock import LAUNCH_BOUND, now_ns
from harness.judge.devices.cpu_hardware import CpuHardware
from harness.judge.devices.cpu_runners import CpuRunners
from harness.judge.devices.cpu_scheduling import real_time_priority, run_delay_ns
from harness.judge.devices.interface import Batch, Calibration, Clock, Connection, RunnerTrust
from harness.judge.input_data.layout import Layout
from harness.judge.memory_plan import MemoryPlan
from harness.judge.native import Exchanged, Native
from harness.judge.reference import Value
from harness.judge.runners import Runner, RunnerFailed
from harness.judge.shared_memory import OutputPool, Region, poison_outputs
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage
from harness.model.verdict import Trust, Verdict
from harness.runner import wire
from harness.runner.messages import HostMemory, Load, Program

_MEMORY_BYTES = 64 << 20
"""Shared memory of the inputs, and of the outputs, unless one set is larger. Both processes populate all pages."""
_TEMPORARY_BYTES, _TEMPORARY_SETS = 16 << 20, 8
"""Temporary memory between two batches: number of sets, if they fit in this number of bytes."""
_URGENT_S = 0.25
"""Longest time that a batch runs at real-time priority; longer batches do not need it."""
_PROCESS_SHARE = 0.028
"""Standard deviation of a call's time between processes that run the same code, as a share of it."""
_LOAD_S = 60.0
"""Seconds in which a runner loads a program or prepares a workload."""


@dataclass(eq=False)
class CpuConnection(Connection):
    """A runner with its own outputs."""

    region: Region


@dataclass
class CpuMemory:
    """The reserved memory with the layout of one workload."""

    layout: Layout
    capacity: int
    region: Region

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """Return a slot's inputs by name, to be written in place."""
        return self.layout.input_views(self.region.slot(slot, self.layout.input_stride))

    def inputs(self, slot: int) -> list[Value]:
        """Return a slot's inputs in the order of the reference's arguments; they are not copies."""
        return self.layout.input_values(self.views(slot))

    def outputs(self, connection: CpuConnection, slot: int) -> dict[str, torch.Tensor]:
        """Return the outputs that a runner wrote; they cannot change, because the runner is stopped.

        Args:
            connection: the runner of the last batch.
            slot: number of the slot.
        """
        return self.layout.output_views(connection.region.slot(slot, self.layout.output_stride))


class CpuClock(Clock):
    """The clock of the CPU; see the protocol `Clock`.

    Args:
        hardware: the CPU.
        runners: its runners.
        cache: directory of earlier calibrations.
    """

    separate_calls = work_outlasts_stop = False

    def __init__(self, hardware: CpuHardware, runners: CpuRunners, cache: Path) -> None:
        self.hardware, self.runners = hardware, runners
        self._cpu, self._cache = hardware.runner_processor, cache
        self._cold = hardware.native if hardware.flushes_caches else None
        self._inputs = Region(_MEMORY_BYTES, sealed=True)
        self._spare_outputs = OutputPool(_MEMORY_BYTES)
        self.calibration = Calibration(0.0, 0.0)
        self._handshake = handshake.HandshakeCalibration(0.0)
        self._calibrated_at = 0.0
        self._calibrate()

    def facts(self) -> dict[str, object]:
        """Return the overheads of the clock, and the method by which it stops a runner."""
        refused_ns = self._handshake.refused_ns
        return {
            "stop": "signals and cgroup.freeze" if self.runners.plan.freezes else "signals",
            "handshake_us": round(self._handshake.ns / 1e3, 2),
            **({} if refused_ns is None else {"handshake_refused_us": round(refused_ns / 1e3, 2)}),
            "dispatch_us": round(self.calibration.dispatch_ns / 1e3, 3),
            "calibration_age_s": round(time.monotonic() - self._calibrated_at),
        }

    @timed_as(JudgeStage.MEMORY)
    def reserve(self, layouts: Sequence[Layout]) -> bool:
        """Enlarge the memory if one set of a workload does not fit; see `Clock.reserve`.

        Args:
            layouts: layouts of the workloads.
        """
        inputs = max((layout.input_stride for layout in layouts), default=0)
        outputs = max((layout.output_stride for layout in layouts), default=0)
        if inputs > self._inputs.bytes:
            self._inputs.close()
            self._inputs = Region(inputs, sealed=True)
            self._spare_outputs.resize(outputs)
            return True
        return self._spare_outputs.resize(outputs)

    @contextlib.contextmanager
    def temporary_memory(self, layouts: Sequence[Layout]) -> Iterator[None]:
        """Replace the regions of the timed runners by regions of a few sets inside this context."""
        timed_regions = self._inputs, self._spare_outputs
        with (
            contextlib.closing(Region(_sets_bytes([layout.input_stride for layout in layouts]), sealed=True)) as inputs,
            contextlib.closing(OutputPool(_sets_bytes([layout.output_stride for layout in layouts]))) as outputs,
        ):
            self._inputs, self._spare_outputs = inputs, outputs
            try:
                yield
            finally:
                self._inputs, self._spare_outputs = timed_regions

    def open(self, runner: Runner, program: Program, trust: RunnerTrust) -> CpuConnection:
        """Load a program, with the shared inputs and outputs without data of an earlier runner; see `Clock.open`.

        Args:
            runner: a new runner.
            program: what it loads.
            trust: whose code it executes.
        """
        connection = CpuConnection(runner, trust, self._spare_outputs.lend())
        try:
            descriptors = self._inputs.descriptor, connection.region.descriptor
            memory = HostMemory(self._inputs.bytes, connection.region.bytes)
            runner.ask(Load(program, memory), wire.Code.LOADED, _LOAD_S, descriptors)
        except BaseException:
            self.close(connection)
            raise
        return connection

    def prepare(
        self,
        connection: CpuConnection,
        layout: Layout,
        slots: int,
        *,
        variant: str = "",
        launches: Mapping[str, Any] | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        """Let a runner prepare the calls of a workload, in the memory that it has; see `Clock.prepare`.

        Args:
            connection: an open runner.
            layout: the workload's inputs and outputs.
            slots: number of sets.
            variant: variant of the reference.
            launches: not used.
            plan: not used.
        """
        del launches, plan
        connection.runner.ask(layout.message(slots, variant), wire.Code.READY, _LOAD_S)

    def close(self, connection: CpuConnection) -> None:
        """End a runner and take its outputs back."""
        self.runners.end(connection.runner)
        self._spare_outputs.take_back(connection.region)

    def release(self) -> None:
        """Close the regions."""
        self._inputs.close()
        self._spare_outputs.close()

    def memory(self, layout: Layout, workloads: int = 1, plan: MemoryPlan | None = None) -> CpuMemory:
        """Return the reserved memory with the layout of one workload, and as many slots as fit.

        Args:
            layout: the workload's inputs and outputs.
            workloads: not used.
            plan: not used.
        """
        del workloads, plan
        capacity = min(self._inputs.bytes // layout.input_stride, self._spare_outputs.bytes // layout.output_stride)
        return CpuMemory(layout, min(capacity, wire.MAX_CALLS), self._inputs)

    def time_calls(self, connection: CpuConnection, memory: CpuMemory, slots: Sequence[int], within_s: float) -> Batch:
        """Poison the outputs, flush the caches, continue the runner, time its calls, and stop it; see `Clock`.

        Args:
            connection: a runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of the batch.

        Raises:
            RunnerFailed: the candidate failed in a way that determines its verdict.
        """
        runner, layout, steal = connection.runner, memory.layout, self.hardware.steal
        poison_outputs(connection.region, layout, slots, self._cold, self._inputs)
        if self._cold is not None:
            first, count = min(slots), max(slots) + 1 - min(slots)
            self._cold.flush(self._inputs.address + first * layout.input_stride, count * layout.input_stride)
        call = secrets.randbits(62)
        processes = runner.processes
        try:
            runner.channel.check_nothing_unread()
            runner.channel.send_call(call, slots)
            runner.check_still_stopped()
            steal_begin_ns = steal.taken_ns(self._cpu)
            with real_time_priority(processes):
                delays_before, judge_delay_begin_ns = processes.run_delay_ns(), run_delay_ns()
                record, begin, end = self._exchange(runner, min(within_s, _URGENT_S))
                judge_delay_ns = run_delay_ns() - judge_delay_begin_ns
            if record is None:
                record, begin, end = self._exchange(runner, within_s, begin)
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise runner.failure(error, within_s) from None
        if record is None:
            raise runner.failure(ChannelTimeout(), within_s)
        delays_after, steal_ns = processes.run_delay_ns(), steal.taken_ns(self._cpu) - steal_begin_ns
        runner.accept(record)
        if record.code is not wire.Code.DONE or record.call != call:
            raise RunnerFailed(Verdict.REWARD_HACK, "forged an answer: it is not the answer to this call")
        main_thread_ns, waited_ns, all_processes_ns = (
            after - before for after, before in zip(delays_after, delays_before, strict=True)
        )
        disturbed_ns = max(0, waited_ns - max(0, all_processes_ns - main_thread_ns)) + judge_delay_ns + max(0, steal_ns)
        return Batch(ns=end - begin, claimed_ns=record.claimed_ns, disturbed_ns=disturbed_ns)

    def _exchange(
        self, runner: Runner, within_s: float, since_ns: int | None = None
    ) -> tuple[RunnerRecord | None, int, int]:
        """Continue a runner until it answers, stop it, and return (its record or None, begin, end).

        `since_ns` is the begin of a runner that runs already.
        """
        spin = self.hardware.has_own_processor and since_ns is None
        if (native := self.hardware.native) is not None:
            exchanged = self._continue(native, runner, within_s, spin=spin, slices=runner.processes.proved_slices)
            if exchanged.refused:
                runner.check_still_stopped()
                # Python checks more than the library.
                exchanged = self._continue(native, runner, within_s, spin=spin)
                if exchanged.refused:
                    raise OSError("the control group of a runner cannot be thawed")
            runner.processes.discard_proof()
            if exchanged.data is None:
                return None, since_ns or exchanged.begin_ns, exchanged.end_ns
            record, begin = parse_record(exchanged.data), since_ns or exchanged.begin_ns
            if exchanged.proved and not runner.processes.has_grown():
                runner.stop_was_proved(exchanged.counters)
                return record, begin, exchanged.end_ns
        else:
            begin = since_ns or now_ns()
            runner.processes.resume()
            try:
                record = runner.channel.receive(time.monotonic() + within_s, spin=spin)
            except ChannelTimeout:
                return None, begin, begin
        runner.stop()
        return record, begin, now_ns()

    @staticmethod
    def _continue(
        native: Native, runner: Runner, within_s: float, *, spin: bool, slices: int | None = None
    ) -> Exchanged:
        return native.exchange(
            runner.channel.judge_end, *runner.processes.descriptors(),
            spin=spin, within_s=within_s, record=wire.RECORD_BYTES + 1, slices=slices,
        )  # fmt: skip

    def _calibrate(self) -> None:
        """Measure handshake and dispatch repeatedly, each time in a clean runner, until the handshake is stable."""
        plan, cold = self.runners.plan, self.hardware.flushes_caches
        key = f"{self.hardware.digest} {platform.release()} {plan.sandbox} {plan.freezes} {cold}"
        dispatches: list[float] = []

        def calibrate() -> float:
            handshake_ns, dispatch_ns = handshake.measure_overheads(self, self.runners.without_torch())
            dispatches.append(dispatch_ns)
            return handshake_ns

        usual_ns = handshake.usual_handshake_ns(self._cache, key)
        self._handshake = handshake.calibrate_handshake(calibrate, usual_ns)
        handshake.remember_handshake(self._cache, key, self._handshake)
        self.calibration = Calibration(self._handshake.ns, min(dispatches))
        self._calibrated_at = time.monotonic()

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """Return the standard deviation of ln(latency) between processes, which is the same for every call.

        It was measured (docs/performance.md).

        Args:
            latency_ns: not used.
            bound_ns: not used.
        """
        del latency_ns, bound_ns
        return _PROCESS_SHARE

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Return LAUNCH_BOUND for a call close to its dispatch, or with a batch below the handshake, else BOUNDED.

        A slow handshake makes a short call look long. A runner has no reason to report a call as shorter than it is.

        Args:
            latency_ns: latency of a call by the judge's clock.
            claimed_ns: duration of a call that the runner reports.
        """
        calibration = self.calibration
        shortest = max(LAUNCH_BOUND * calibration.dispatch_ns, calibration.handshake_ns / calibration.most_calls)
        return Trust.LAUNCH_BOUND if min(latency_ns, claimed_ns) < shortest else Trust.BOUNDED


def _sets_bytes(strides: Sequence[int]) -> int:
    """Return the bytes for a few sets of every workload, and at least one of the largest."""
    return max(stride * max(1, min(_TEMPORARY_SETS, _TEMPORARY_BYTES // stride)) for stride in strides)
