"""The CPU as a device: one pinned processor, shared memory, and a runner that is stopped while the judge works."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harness.judge import handshake
from harness.judge.channel import ChannelClosed, ChannelTimeout, MalformedRecord, RunnerRecord, parse_record
from harness.judge.clock import LAUNCH_BOUND, now_ns
from harness.judge.correctness import Summed, summed
from harness.judge.devices.cpu_copies import HostBatchedCopy
from harness.judge.devices.cpu_scheduling import (
    Steal,
    processor_name,
    real_time_priority,
    run_delay_ns,
    worker_count,
    worker_pool,
)
from harness.judge.devices.interface import Batch, Calibration, Device, Memory, T
from harness.judge.devices.lock import take_device_lock
from harness.judge.input_data.layout import Layout
from harness.judge.isolation.cgroup_freezer import freezer_works
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.native import Exchanged, Native, load_native
from harness.judge.reference import Value
from harness.judge.runners import Runner, RunnerFailed, RunnerPlan, Standby
from harness.judge.shared_memory import OutputPool, Region, poison_outputs
from harness.judge.stages import divided_among_threads, timed_as
from harness.model.config import SandboxKind
from harness.model.judging import DeviceRecord, JudgeStage
from harness.model.languages import Language, languages_on
from harness.model.problem import Problem
from harness.model.verdict import Trust, Verdict
from harness.runner import wire
from harness.workspace import timing_lock

_MEMORY_BYTES = 64 << 20
"""Shared memory of the inputs, and of the outputs, unless one set is larger. Both processes populate all pages."""
_TEMPORARY_BYTES, _TEMPORARY_SETS = 16 << 20, 8
"""Temporary memory between two batches: number of sets, if they fit in this number of bytes."""
_NICE = -5
_URGENT_S = 0.25
"""Longest time that a batch runs at real-time priority; longer batches do not need it."""
_PROCESS_SHARE = 0.028
"""Standard deviation of a call's time between processes that run the same code, as a share of it."""
_CACHE, _INDUCTOR = "TORCHINDUCTOR_CACHE_DIR", "/inductor"
_WITHOUT_TORCH = {"HARNESS_RUNNER_TORCH": "0"}
"""Environment of a runner for compiled code. It is started on demand, without the import of torch, which takes 2 s."""


@dataclass
class CpuMemory:
    """The reserved memory with the layout of one workload."""

    layout: Layout
    capacity: int
    region: Region
    outputs_of: Mapping[int, Region]

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """Return a slot's inputs by name, to be written in place."""
        return self.layout.input_views(self.region.slot(slot, self.layout.input_stride))

    def inputs(self, slot: int) -> list[Value]:
        """Return a slot's inputs in the order of the reference's arguments; they are not copies."""
        return self.layout.input_values(self.views(slot))

    def outputs(self, runner: Runner, slot: int) -> dict[str, torch.Tensor]:
        """Return the outputs that a runner wrote; they cannot change, because the runner is stopped.

        Args:
            runner: the runner of the last batch.
            slot: number of the slot.
        """
        return self.layout.output_views(self.outputs_of[id(runner)].slot(slot, self.layout.output_stride))


class CpuDevice(Device):
    """The CPU of this host; see the protocol `Device`. A lock of the host permits one judge at a time."""

    target = "cpu"
    memory_on = torch.device("cpu")
    languages: tuple[Language, ...] = languages_on("cpu")

    def __init__(self, *, cache: Path, sandbox: SandboxKind) -> None:
        self._lock = take_device_lock("cpu", "cpu")
        allowed = sorted(os.sched_getaffinity(0))
        self._cpu = allowed[-1]
        self._spin = len(allowed) > 1
        self._threads = torch.get_num_threads()
        torch.zeros(1 << 20).add_(1)  # starts torch's worker threads while every processor is allowed
        torch.set_num_threads(1)  # the judge's operations are shorter than the wake-up of workers
        if self._spin:
            os.sched_setaffinity(0, set(allowed[:-1]))
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        self._pool = worker_pool(allowed)
        self._scratch = Path(tempfile.mkdtemp(prefix="kernel-harness-judge-"))
        atexit.register(shutil.rmtree, self._scratch, ignore_errors=True)  # a judge may be ended before `close`
        self._inductor = cache / "inductor"
        self._inductor.mkdir(parents=True, exist_ok=True)
        limits = SandboxLimits(cpus=frozenset(allowed), nice=_NICE, address_space_bytes=16 * GIB)
        pinned = frozenset({self._cpu})
        self._plan = RunnerPlan(sandbox, limits, self._scratch, pinned=pinned, freezes=freezer_works())
        self._standby = Standby(lambda: Runner(self._plan))
        self._steal = Steal()
        self._native = load_native(cache)
        self.summed: Summed = self._native.summed if self._native is not None else summed
        self.copy_all = (
            HostBatchedCopy(self._native, self.map_slots, worker_count(allowed)) if self._native is not None else None
        )
        self._cold = self._native is not None and self._native.flushes
        self._inputs = Region(_MEMORY_BYTES, sealed=True)
        self._outputs: dict[int, Region] = {}
        self._spare_outputs = OutputPool(_MEMORY_BYTES)
        self._digest = hashlib.sha256(f"{processor_name()}{platform.node()}".encode()).hexdigest()
        self.calibration = Calibration(0.0, 0.0)
        self._cache = cache
        self._handshake = handshake.HandshakeCalibration(0.0)
        self._calibrated_at = 0.0
        self.recalibrate()

    def record(self) -> DeviceRecord:
        """Return name, stable id, and the conditions of timings."""
        refused_ns = self._handshake.refused_ns
        return DeviceRecord.model_validate(
            {
                "name": processor_name(),
                "id": f"CPU-{self._digest[:12]}",
                "processors": os.cpu_count(),
                "pinned": self._cpu,
                "cold": self._cold,
                "stop": "signals and cgroup.freeze" if self._plan.freezes else "signals",
                "handshake_us": round(self._handshake.ns / 1e3, 2),
                **({} if refused_ns is None else {"handshake_refused_us": round(refused_ns / 1e3, 2)}),
                "dispatch_us": round(self.calibration.dispatch_ns / 1e3, 3),
                "calibration_age_s": round(time.monotonic() - self._calibrated_at),
            }
        )

    @timed_as(JudgeStage.WAIT)
    def runner(self, *, trusted: bool = False, needs_torch: bool = True) -> Runner:
        """Return a new runner; see `Device.runner`.

        Args:
            trusted: return a runner for the reference, which has a compiler cache.
            needs_torch: return the standby runner, which has imported torch.
        """
        if not trusted:
            return self._standby.take() if needs_torch else Runner(_with_env(self._plan, _WITHOUT_TORCH))
        if self._plan.sandbox == "none":
            return Runner(_with_env(self._plan, {_CACHE: str(self._inductor)}))
        return Runner(_with_env(self._plan, {_CACHE: _INDUCTOR}), writable={self._inductor: _INDUCTOR})

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

    @timed_as(JudgeStage.WAIT)
    def start_standby(self) -> None:
        """Start the next runner in advance."""
        self._standby.start()

    @timed_as(JudgeStage.WAIT)
    def settle(self) -> None:
        """Wait until the standby runner has started."""
        self._standby.settle()

    def after_check(self) -> None:
        """Do nothing: a start would disturb the evaluation, and a runner without torch starts at once."""

    @timed_as(JudgeStage.MEMORY)
    def reserve(self, problem: Problem, layouts: Sequence[Layout]) -> bool:
        """Enlarge the memory if one set of a workload does not fit; see `Device.reserve`.

        Args:
            problem: not used.
            layouts: layouts of the workloads.
        """
        del problem
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

    @timed_as(JudgeStage.MEMORY)
    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """Give a runner the shared inputs and its own outputs, without data of an earlier runner; see `Device.grant`.

        Args:
            runner: a new runner.
            sealed: not used.
        """
        del sealed
        outputs = self._outputs[id(runner)] = self._spare_outputs.lend()
        fields: dict[str, object] = {"input_bytes": self._inputs.bytes, "output_bytes": outputs.bytes}
        return fields, (self._inputs.descriptor, outputs.descriptor)

    def forget(self, runner: Runner) -> None:
        """End a runner and release its memory."""
        runner.kill()
        region = self._outputs.pop(id(runner), None)
        if region is not None:
            self._spare_outputs.take_back(region)

    def memory(self, layout: Layout, workloads: int = 1) -> Memory:
        """Return the reserved memory with the layout of one workload, and as many slots as fit.

        Args:
            layout: the workload's inputs and outputs.
            workloads: not used.
        """
        del workloads
        capacity = min(self._inputs.bytes // layout.input_stride, self._spare_outputs.bytes // layout.output_stride)
        return CpuMemory(layout, min(capacity, wire.MAX_CALLS), self._inputs, self._outputs)

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Poison the outputs, flush the caches, continue the runner, time its calls, and stop it; see `Device.batch`.

        Args:
            runner: a runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of the batch.

        Raises:
            RunnerFailed: the candidate failed in a way that determines its verdict.
        """
        layout, region = memory.layout, self._outputs[id(runner)]
        native = self._native if self._cold else None
        poison_outputs(region, layout, slots, native, self._inputs)
        if native is not None:
            first, count = min(slots), max(slots) + 1 - min(slots)
            native.flush(self._inputs.address + first * layout.input_stride, count * layout.input_stride)
        call = secrets.randbits(62)
        processes = runner.processes
        try:
            runner.channel.check_nothing_unread()
            runner.channel.send_call(call, slots)
            runner.check_still_stopped()
            steal_begin_ns = self._steal.taken_ns(self._cpu)
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
        delays_after, steal_ns = processes.run_delay_ns(), self._steal.taken_ns(self._cpu) - steal_begin_ns
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
        spin = self._spin and since_ns is None
        if self._native is not None:
            exchanged = self._continue(self._native, runner, within_s, spin=spin, slices=runner.processes.proved_slices)
            if exchanged.refused:
                runner.check_still_stopped()
                # Python checks more than the library.
                exchanged = self._continue(self._native, runner, within_s, spin=spin)
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

    def recalibrate(self) -> None:
        """Measure handshake and dispatch repeatedly, each time in a clean runner, until the handshake is stable."""
        key = f"{self._digest[:12]} {platform.release()} {self._plan.sandbox} {self._plan.freezes} {self._cold}"
        dispatches: list[float] = []

        def calibrate() -> float:
            runner = self.runner(needs_torch=False)
            try:
                handshake_ns, dispatch_ns = handshake.measure_overheads(self, runner)
            finally:
                self.forget(runner)
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

    def close(self) -> None:
        """End the standby runner and release memory, files and the lock."""
        self._standby.close()
        if self._pool is not None:
            self._pool.shutdown()
        self._inputs.close()
        self._spare_outputs.close()
        self._steal.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._lock)


def _sets_bytes(strides: Sequence[int]) -> int:
    """Return the bytes for a few sets of every workload, and at least one of the largest."""
    return max(stride * max(1, min(_TEMPORARY_SETS, _TEMPORARY_BYTES // stride)) for stride in strides)


def _with_env(plan: RunnerPlan, env: Mapping[str, str]) -> RunnerPlan:
    return replace(plan, env={**plan.env, **env})
