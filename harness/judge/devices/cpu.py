"""The CPU as a device: one pinned processor, shared memory, the runner stopped whenever the judge works."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harness.judge import shared_memory as shared
from harness.judge.batched_copy import CopyAll
from harness.judge.channel import ChannelClosed, ChannelTimeout, MalformedRecord, RunnerRecord, parse_record
from harness.judge.clock import LAUNCH_BOUND, now_ns
from harness.judge.correctness import Summed, summed
from harness.judge.devices.cpu_overheads import measure_overheads
from harness.judge.devices.interface import Batch, Calibration, Device, Memory, T
from harness.judge.devices.lock import take_device_lock
from harness.judge.handshake import HandshakeCalibration, calibrate_handshake, remember_handshake, usual_handshake_ns
from harness.judge.input_data.layout import Layout
from harness.judge.isolation.cgroup_freezer import freezer_works
from harness.judge.isolation.process_freezer import SandboxProcesses
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.native import Exchanged, Native, load_native
from harness.judge.reference import Value
from harness.judge.runners import Runner, RunnerFailed, RunnerPlan, Standby
from harness.judge.shared_memory import OutputPool, Region
from harness.judge.steal_time import Steal
from harness.model.config import SandboxKind
from harness.model.judging import DeviceRecord
from harness.model.problem import Problem
from harness.model.solution import Language
from harness.model.verdict import Trust, Verdict
from harness.runner import wire
from harness.workspace import timing_lock

_ARENA_BYTES = 64 << 20
"""Of inputs, and of outputs, unless one set is larger: populated pages of shared memory on both sides."""
_ASIDE_BYTES, _ASIDE_SETS = 16 << 20, 8
"""Of work between two batches: so many sets, if they fit in so many bytes."""
_NICE = -5
_URGENT_S = 0.25
"""So long a batch goes before everything else on its processor; nothing that takes longer needs it."""
_PROCESS_SHARE = 0.028
"""Standard deviation of a call's time between processes that run the same code, as a share of it."""
_CACHE, _INDUCTOR = "TORCHINDUCTOR_CACHE_DIR", "/inductor"
_WITHOUT_TORCH = {"HARNESS_RUNNER_TORCH": "0"}
"""Compiled code needs no torch, whose import takes 2 s of a core: such a runner is started when it is needed."""
_MOST_WORKERS = 4
"""More would wait for the interpreter's lock."""
_OWN_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass
class CpuMemory:
    """The reserved memory, laid out for one workload."""

    layout: Layout
    capacity: int
    region: Region
    outputs_of: Mapping[int, Region]

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """A slot's inputs, to be written in place."""
        return shared.input_views(self.region, self.layout, slot)

    def inputs(self, slot: int) -> list[Value]:
        """A slot's inputs as the reference is called with. No runner can write them, so they need no copy."""
        return shared.read_inputs(self.region, self.layout, slot)

    def outputs(self, runner: Runner, slot: int) -> dict[str, torch.Tensor]:
        """A slot's outputs as a runner left them. The runner is stopped, so they stay as they are."""
        return shared.read_outputs(self.outputs_of[id(runner)], self.layout, slot)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class CpuDevice:
    """The CPU of this host. One judge at a time: the lock is the host's."""

    target = "cpu"
    memory_on = torch.device("cpu")
    languages: tuple[Language, ...] = ("cpp", "pytorch")

    def __init__(self, *, cache: Path, sandbox: SandboxKind) -> None:
        self._lock = take_device_lock("cpu", "cpu")
        allowed = sorted(os.sched_getaffinity(0))
        self._cpu = allowed[-1]
        self._spin = len(allowed) > 1
        self._threads = torch.get_num_threads()
        torch.zeros(1 << 20).add_(1)  # the worker threads start while every processor is allowed
        torch.set_num_threads(1)  # what the judge does is short: waking workers costs more than they do
        if self._spin:
            os.sched_setaffinity(0, set(allowed[:-1]))
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        self._pool = _pool(allowed)
        self._scratch = Path(tempfile.mkdtemp(prefix="kernel-harness-judge-"))
        self._inductor = cache / "inductor"
        self._inductor.mkdir(parents=True, exist_ok=True)
        limits = SandboxLimits(cpus=frozenset(allowed), nice=_NICE, address_space_bytes=16 * GIB)
        self._plan = RunnerPlan(
            sandbox=sandbox,
            limits=limits,
            scratch=self._scratch,
            pinned=frozenset({self._cpu}),
            freezes=freezer_works(),
        )
        self._standby = Standby(lambda: Runner(self._plan))
        self._steal = Steal()
        self._native = load_native(cache)
        self.copy_all: CopyAll | None = None
        self.summed: Summed = self._native.summed if self._native is not None else summed
        self._cold = self._native is not None and self._native.flushes
        self._inputs = Region(_ARENA_BYTES, sealed=True)
        self._outputs: dict[int, Region] = {}
        self._spare_outputs = OutputPool(_ARENA_BYTES)
        self._digest = hashlib.sha256(f"{_processor()}{platform.node()}".encode()).hexdigest()
        self.calibration = Calibration(0.0, 0.0)
        self._cache = cache
        self._handshake = HandshakeCalibration(0.0)
        self._calibrated_at = 0.0
        self.recalibrate()

    def clock(self, *, sealed: bool) -> Device:
        """There is one."""
        del sealed
        return self

    def record(self) -> DeviceRecord:
        """Name, stable id, and how it was used."""
        refused = self._handshake.refused_ns
        return DeviceRecord.model_validate(
            {
                "name": _processor(),
                "id": f"CPU-{self._digest[:12]}",
                "processors": os.cpu_count(),
                "pinned": self._cpu,
                "cold": self._cold,
                "stop": "signals and cgroup.freeze" if self._plan.freezes else "signals",
                "handshake_us": round(self._handshake.ns / 1e3, 2),
                **({} if refused is None else {"handshake_refused_us": round(refused / 1e3, 2)}),
                "dispatch_us": round(self.calibration.dispatch_ns / 1e3, 3),
                "calibration_age_s": round(time.monotonic() - self._calibrated_at),
            }
        )

    def runner(self, *, trusted: bool = False, needs_torch: bool = True) -> Runner:
        """A fresh runner: the standby, one that is ready without torch, or the reference's with its compiler cache."""
        if not trusted:
            return self._standby.take() if needs_torch else Runner(_with_env(self._plan, _WITHOUT_TORCH))
        if self._plan.sandbox == "none":
            return Runner(_with_env(self._plan, {_CACHE: str(self._inductor)}))
        return Runner(_with_env(self._plan, {_CACHE: _INDUCTOR}), writable={self._inductor: _INDUCTOR})

    @contextlib.contextmanager
    def all_processors(self) -> Iterator[None]:
        """For work of the judge that is long: every worker thread. Runners are stopped meanwhile."""
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def timing(self) -> AbstractContextManager[None]:
        """Alone on this host: other work uses the same processors and memory."""
        return timing_lock.timing()

    def each(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Work for each slot: runners are stopped meanwhile, so that their processor is free for it."""
        if self._pool is None or len(slots) < 2:
            return [work(slot) for slot in slots]
        futures = [self._pool.submit(work, slot) for slot in slots]
        wait(futures)
        return [future.result() for future in futures]

    def start_standby(self) -> None:
        """Start the next runner ahead."""
        self._standby.start()

    def settle(self) -> None:
        """Wait for the standby's start-up."""
        self._standby.settle()

    def reserve(self, problem: Problem, layouts: Sequence[Layout]) -> bool:
        """See to it that one set of every workload fits."""
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
    def aside(self, layouts: Sequence[Layout]) -> Iterator[None]:
        """Regions of a few sets, in place of those that the runners being timed have mapped."""
        timed = self._inputs, self._spare_outputs
        self._inputs = Region(_sets_bytes([layout.input_stride for layout in layouts]), sealed=True)
        self._spare_outputs = OutputPool(_sets_bytes([layout.output_stride for layout in layouts]))
        try:
            yield
        finally:
            self._inputs.close()
            self._spare_outputs.close()
            self._inputs, self._spare_outputs = timed

    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """The inputs, shared by all, and outputs of the runner's own, which say nothing of an earlier runner's."""
        del sealed
        mine = self._outputs[id(runner)] = self._spare_outputs.lend()
        words: dict[str, object] = {"input_bytes": self._inputs.bytes, "output_bytes": mine.bytes}
        return words, (self._inputs.descriptor, mine.descriptor)

    def loaded(self, runner: Runner, short_kernel_ns: int) -> None:
        """Nothing: the judge's own clock is the same for all runners."""
        del runner, short_kernel_ns

    def place(self, runner: Runner, layout: Layout, slots: int) -> tuple[dict[str, object], tuple[int, ...]]:
        """Nothing: the memory was granted with the runner."""
        del runner, layout, slots
        return {}, ()

    def untried(self, runner: Runner) -> int:
        """None: all runners use the same slots."""
        del runner
        return 0

    def conclude(self, runner: Runner) -> None:
        """Nothing: a runner is stopped between its batches."""
        del runner

    def forget(self, runner: Runner) -> None:
        """End a runner and give its memory back."""
        runner.kill()
        region = self._outputs.pop(id(runner), None)
        if region is not None:
            self._spare_outputs.take_back(region)

    def memory(self, layout: Layout) -> Memory:
        """As many slots as fit."""
        capacity = min(self._inputs.bytes // layout.input_stride, self._spare_outputs.bytes // layout.output_stride)
        return CpuMemory(layout, min(capacity, wire.MAX_CALLS), self._inputs, self._outputs)

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Poison, flush, hand over, time, stop (see the protocol)."""
        layout, region = memory.layout, self._outputs[id(runner)]
        native = self._native if self._cold else None
        shared.poison_outputs(region, layout, slots, native, self._inputs)
        if native is not None:
            first, count = min(slots), max(slots) + 1 - min(slots)
            native.flush(self._inputs.address + first * layout.input_stride, count * layout.input_stride)
        call = secrets.randbits(62)
        processes = runner.processes
        try:
            runner.channel.check_nothing_unread()
            runner.channel.send_call(call, slots)
            runner.check_still_stopped()
            stolen = self._steal.taken_ns(self._cpu)
            with _realtime(processes):
                before, mine = processes.run_delay_ns(), _waited_ns()
                record, begin, end = self._exchange(runner, min(within_s, _URGENT_S))
                mine = _waited_ns() - mine
            if record is None:
                record, begin, end = self._exchange(runner, within_s, begin)
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise runner.failure(error, within_s) from None
        if record is None:
            raise runner.failure(ChannelTimeout(), within_s)
        after, stolen = processes.run_delay_ns(), self._steal.taken_ns(self._cpu) - stolen
        runner.accept(record)
        if record.code is not wire.Code.DONE or record.call != call:
            raise RunnerFailed(Verdict.REWARD_HACK, "forged an answer: it is not the answer to this call")
        on, waited, total = (late - early for late, early in zip(after, before, strict=True))
        outside = max(0, waited - max(0, total - on)) + mine + max(0, stolen)
        return Batch(ns=end - begin, claimed_ns=record.claimed_ns, disturbed_ns=outside)

    def _exchange(
        self, runner: Runner, within_s: float, since_ns: int | None = None
    ) -> tuple[RunnerRecord | None, int, int]:
        """Let it run until it answers, then stop it: (its record or None, begin, end). `since_ns`: it runs already."""
        spin = self._spin and since_ns is None
        if self._native is not None:
            seen = self._continue(self._native, runner, within_s, spin=spin, slices=runner.processes.proved_slices)
            if seen.refused:
                runner.check_still_stopped()
                seen = self._continue(self._native, runner, within_s, spin=spin)  # Python sees more than the library
                if seen.refused:
                    raise OSError("the control group of a runner cannot be thawed")
            runner.processes.discard_proof()
            if seen.data is None:
                return None, since_ns or seen.begin_ns, seen.end_ns
            record, begin = parse_record(seen.data), since_ns or seen.begin_ns
            if seen.proved and not runner.processes.has_grown():
                runner.stop_was_proved(seen.counters)
                return record, begin, seen.end_ns
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
        """Measure handshake and dispatch, each time in a clean runner, until the handshake is steady."""
        key = f"{self._digest[:12]} {platform.release()} {self._plan.sandbox} {self._plan.freezes} {self._cold}"
        dispatches: list[float] = []

        def calibrate() -> float:
            handshake, dispatch = self._measure_overheads()
            dispatches.append(dispatch)
            return handshake

        self._handshake = calibrate_handshake(calibrate, usual_handshake_ns(self._cache, key))
        remember_handshake(self._cache, key, self._handshake)
        self.calibration = Calibration(self._handshake.ns, min(dispatches))
        self._calibrated_at = time.monotonic()

    def _measure_overheads(self) -> tuple[float, float]:
        """(Handshake, dispatch) in ns, in a runner that is ended after it."""
        runner = self.runner(needs_torch=False)
        try:
            return measure_overheads(self, runner)
        finally:
            self.forget(runner)

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """The same share of every call (docs/performance.md)."""
        del latency_ns, bound_ns
        return _PROCESS_SHARE

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Launch-bound: a call not much longer than its dispatch, or one whose batch is shorter than its handshake.

        A handshake that was slower than usual makes a short call look long; a runner has no reason to say it was short.
        """
        shortest = max(
            LAUNCH_BOUND * self.calibration.dispatch_ns, self.calibration.handshake_ns / self.calibration.most_calls
        )
        return Trust.LAUNCH_BOUND if min(latency_ns, claimed_ns) < shortest else Trust.BOUNDED

    def close(self) -> None:
        """End the standby and give memory, files and the lock back."""
        self._standby.close()
        if self._pool is not None:
            self._pool.shutdown()
        self._inputs.close()
        self._spare_outputs.close()
        self._steal.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._lock)


def _sets_bytes(strides: Sequence[int]) -> int:
    """Bytes for a few sets of every workload, and for one of the largest."""
    return max(stride * max(1, min(_ASIDE_SETS, _ASIDE_BYTES // stride)) for stride in strides)


def _pool(processors: Sequence[int]) -> ThreadPoolExecutor | None:
    """Threads for the judge's own work, on every processor; None where there is only one."""

    def begin() -> None:
        os.sched_setaffinity(0, set(processors))
        torch.set_num_threads(1)

    workers = min(len(processors), _MOST_WORKERS)
    return ThreadPoolExecutor(workers, "judge", begin) if workers > 1 else None


def _with_env(plan: RunnerPlan, env: Mapping[str, str]) -> RunnerPlan:
    return replace(plan, env={**plan.env, **env})


@contextlib.contextmanager
def _realtime(processes: SandboxProcesses) -> Iterator[None]:
    """Judge and runner go before every ordinary process, each on its own processor, where this process may say so."""
    processes.set_realtime(on=True)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        processes.set_realtime(on=False)


def _waited_ns() -> int:
    """Nanoseconds that this thread has waited for a processor so far."""
    return int(_OWN_SCHEDSTAT.read_bytes().split()[1])
