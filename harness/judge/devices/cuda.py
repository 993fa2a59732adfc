"""A CUDA device: one call at a time in memory that the judge controls, and two clocks.

**Bounded**: the judge's own clock, from the request for a call until secret positions of its outputs have arrived.
**Sealed**: device events around each call, read by a trusted process. It runs no host code of the candidate, only that
of the problem. ADR 30 has the protocol, and docs/clock.md has the measurements.
"""

from __future__ import annotations

import atexit
import math
import os
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

from harness.errors import ConfigurationError
from harness.judge.build.cuda_builder import trusted_cubin
from harness.judge.channel import ChannelClosed, ChannelTimeout, MalformedRecord
from harness.judge.clock import LAUNCH_BOUND, now_ns
from harness.judge.correctness import Summed
from harness.judge.devices.cuda_conduct import Conduct
from harness.judge.devices.cuda_cycle import Cycle, Line
from harness.judge.devices.cuda_environment import device_nodes, require_no_mps, runner_environment
from harness.judge.devices.cuda_memory import CudaMemory, DeviceBatchedCopy, DeviceComparison, fitting_sets
from harness.judge.devices.cuda_placements import PlacementPool, reserve_memory
from harness.judge.devices.cuda_runners import CudaRunners, runners_ahead
from harness.judge.devices.cuda_sealed import SealedClock
from harness.judge.devices.cuda_statistics import bounded_process_error, held_calls, middle_mean, process_offset_ns
from harness.judge.devices.event_overhead import event_overhead_us
from harness.judge.devices.interface import Batch, Calibration, Device, Memory, Reading
from harness.judge.devices.lock import take_device_lock
from harness.judge.devices.nvml import Nvml, Sample
from harness.judge.devices.processors import TimingCores
from harness.judge.input_data.copies import BatchedCopy
from harness.judge.input_data.layout import Layout, calibration_layout
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.runners import NoRoom, Runner, RunnerFailed, RunnerPlan
from harness.judge.shared_memory import Region
from harness.judge.stages import timed_as
from harness.model.config import SandboxKind
from harness.model.judging import DeviceRecord, JudgeStage
from harness.model.languages import Language, languages_on
from harness.model.verdict import Trust, Verdict
from harness.runner import wire
from harness.runner.device_memory import granularity
from harness.runner.doorbell import Request, create_page
from harness.runner.driver import CudaError
from harness.runner.launcher import TrustedKernels
from harness.sol.hardware import target_name
from harness.workspace import timing_lock

_WINDOW_BYTES = 32 * GIB
"""Device addresses that a runner reserves; physical memory is mapped there for each workload."""
_SCALAR_BYTES = 1 << 20
_SAMPLE_AGE_S = 0.05
"""A sample of the device's state counts for batches that end up to this time after it. A sample may take 1 ms or more,
and a batch takes about 5 ms."""
_BOUNDED = Calibration(0.0, 0.0, batch_ns=6_000_000, most_calls=10, separate_calls=True, work_outlasts_stop=True)
_PROBE_CYCLES = 40_000
_BUSY_NS = 400_000
"""A kernel of 20 us that takes this long shares the GPU: another context may run first."""
_IDLE_WITHIN_S = 0.2
_CALIBRATIONS = 12
"""Batches of empty calls; the first is not counted."""
_LOAD_S = 120.0


def open_cuda(ordinal: int, *, cache: Path, sandbox: SandboxKind) -> CudaDevice:
    """Open and lock a CUDA device.

    Args:
        ordinal: number of the device among those in CUDA_VISIBLE_DEVICES.
        cache: directory of compiled code.
        sandbox: isolation of the runners.

    Raises:
        ConfigurationError: there is no such device, a library is missing, or another judge holds the device.
        HostFaultError: MPS is active.
    """
    require_no_mps()
    nvml = Nvml(ordinal)
    os.environ["CUDA_VISIBLE_DEVICES"] = nvml.uuid  # the only device of this process and of all runners, now number 0
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "no CUDA device is usable: torch finds none",
            where="--device cuda",
            remedy="install a driver and a CUDA build of torch, or use --device cpu",
        )
    lock = take_device_lock(f"cuda-{nvml.uuid}", f"cuda:{ordinal} ({nvml.name})")
    return CudaDevice(nvml, lock, cache=cache, sandbox=sandbox)


class CudaDevice(Device):
    """One GPU, with the clock for candidates with host code; see the protocol `Device`."""

    memory_on = torch.device("cuda")
    languages: tuple[Language, ...] = languages_on("cuda")

    def __init__(self, nvml: Nvml, lock: int, *, cache: Path, sandbox: SandboxKind) -> None:
        self._nvml, self._lock = nvml, lock
        self.target = target_name(nvml.name)
        reserve_memory()
        torch.backends.cudnn.allow_tf32 = False  # expected outputs are computed in the precision of the problem
        self._pool = PlacementPool(granularity())
        self._cubin = trusted_cubin(cache)
        self._trusted = TrustedKernels(self._cubin)
        self.summed: Summed = DeviceComparison(self._trusted)
        self.copy_all: BatchedCopy | None = DeviceBatchedCopy(self._trusted)
        near_gpus = nvml.processors_of_gpus()
        self._cores = TimingCores(frozenset(os.sched_getaffinity(0)), near_gpus, nvml.index)
        self._scratch = Path(tempfile.mkdtemp(prefix="kernel-harness-judge-"))
        atexit.register(shutil.rmtree, self._scratch, ignore_errors=True)  # a judge may be ended before `close`
        inductor = cache / "inductor-cuda"
        inductor.mkdir(parents=True, exist_ok=True)
        plan = RunnerPlan(
            sandbox=sandbox,
            limits=SandboxLimits(cpus=self._cores.of_runners, address_space_bytes=None, memory_bytes=32 * GIB),
            scratch=self._scratch,
            env=runner_environment(nvml.uuid, torch.cuda.get_device_capability()),
            devices=device_nodes(),
            warms=True,
            imports_apart=self._cores.are_apart,
        )
        self._runners = CudaRunners(plan, inductor, runners_ahead(len(near_gpus), torch.cuda.mem_get_info()[1]))
        self._scalars = Region(_SCALAR_BYTES, sealed=True)
        self._lines: dict[int, Line] = {}
        self._trusted_runners: set[int] = set()
        self._throttled: set[str] = set()
        self._max_other_processes = 0
        self._sample = nvml.sample()
        self._probe = self._trusted.spin(_PROBE_CYCLES)
        self._probe_ns = float(_BUSY_NS)
        self._cycle = Cycle(self._trusted, self._probe)
        self._min_overhead_ns = math.inf
        self.calibration = _BOUNDED
        short_kernels_us = self._trusted.short_kernels_us()
        self._short_kernel_ns = statistics.fmean(short_kernels_us) * 1e3
        self._calibrated_at = 0.0
        self.sealed = SealedClock(self, event_overhead_us(self._trusted, short_kernels_us) * 1e3)
        self.recalibrate()

    def clock(self, *, sealed: bool) -> Device:
        """Return this device, or the one with the clock of device events."""
        return self.sealed if sealed else self

    def record(self) -> DeviceRecord:
        """Return name, id, driver, current clocks, and throttling and other processes since the last record."""
        sample = self._nvml.sample()
        throttled, self._throttled = sorted(self._throttled), set()
        other_processes = max(sample.other_processes, self._max_other_processes)
        self._max_other_processes = 0
        return DeviceRecord.model_validate(
            {
                "name": self._nvml.name,
                "id": self._nvml.uuid,
                "driver": self._nvml.driver,
                "cuda": torch.version.cuda,
                "clocks_mhz": {"sm": sample.sm_mhz, "memory": sample.memory_mhz},
                "power_w": sample.power_w,
                "throttle": throttled,
                "others": other_processes,
                "around_us": round(self.calibration.call_overhead_ns / 1e3, 2),
                "dispatch_us": round(self.calibration.dispatch_ns / 1e3, 2),
                "events_us": round(self.sealed.calibration.call_overhead_ns / 1e3, 2),
                "calibration_age_s": round(time.monotonic() - self._calibrated_at),
            }
        )

    @timed_as(JudgeStage.WAIT)
    def runner(self, *, trusted: bool = False, needs_torch: bool = True) -> Runner:
        """Return a new runner from the standby; all have imported torch.

        Args:
            trusted: return a runner for the reference, which has a compiler cache.
            needs_torch: not used.
        """
        del needs_torch
        runner = self._runners.take(trusted=trusted)
        if trusted:
            self._trusted_runners.add(id(runner))
        return runner

    def timing(self) -> AbstractContextManager[None]:
        """Hold the timing lock: shared with judges that also have separate cores, exclusive on this host otherwise."""
        return timing_lock.timing_apart() if self._cores.are_apart else timing_lock.timing()

    @timed_as(JudgeStage.WAIT)
    def start_standby(self) -> None:
        """Start the next runners in advance, including one for the reference.

        Raises:
            HostFaultError: MPS is active.
        """
        require_no_mps()
        self._runners.start()

    @timed_as(JudgeStage.WAIT)
    def settle(self) -> None:
        """Wait until no runner creates or destroys a context, which disturbs the device."""
        self._runners.settle()
        self._cores.stay_awake()

    def after_check(self) -> None:
        """Start runners in place of those that checks took."""
        self._runners.replace_checked()

    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """Connect a runner to the device with a new doorbell; see `Device.grant`.

        Args:
            runner: a new runner.
            sealed: the runner makes the calls of a sealed candidate.
        """
        page = create_page()
        is_trusted = sealed or id(runner) in self._trusted_runners
        self._lines[id(runner)] = Line(runner, page, is_trusted, Conduct(self._probe_ns))
        fields: dict[str, object] = {"window_bytes": _WINDOW_BYTES, "scalar_bytes": self._scalars.bytes}
        return fields, (self._scalars.descriptor, page)

    def grant_timed(self, runner: Runner, *, sealed: bool) -> tuple[dict[str, object], tuple[int, ...]]:
        """Connect a trusted runner that reads device events; see `Device.grant`.

        Args:
            runner: a new runner.
            sealed: the runner makes the calls of a sealed candidate.
        """
        fields, descriptors = self.grant(runner, sealed=sealed)
        cubin = runner.stage / "trusted.cubin"
        cubin.write_bytes(self._cubin)
        return {**fields, "trusted": runner.inside(cubin), "timed": True}, descriptors

    def loaded(self, runner: Runner, short_kernel_ns: int) -> None:
        """Store the difference of a runner's event readings from the judge's, by which its readings are corrected.

        Args:
            runner: a connected runner.
            short_kernel_ns: its reading of a short trusted kernel; 0 without events.
        """
        if short_kernel_ns:
            self._lines[id(runner)].offset_ns = process_offset_ns(short_kernel_ns, self._short_kernel_ns)

    def place(self, runner: Runner, layout: Layout, slots: int) -> tuple[dict[str, object], tuple[int, ...]]:
        """Replace a runner's placements by those of its next workload; see `Device.place`.

        Args:
            runner: a connected runner.
            layout: the workload's inputs and outputs.
            slots: number of sets that the judge uses at a time; with 1 the runner has few placements.

        Raises:
            NoRoom: the device does not have enough memory.
        """
        line = self._lines[id(runner)]
        line.drop_memory()
        self._runners.wait_for_ends()
        line.conduct, line.has_served = Conduct(self._probe_ns), False
        try:
            if slots > 1 or fitting_sets(layout) == 1:
                line.placements = self._pool.take(layout, slots)
            else:
                line.placements = self._pool.take_few(layout)
        except (CudaError, torch.OutOfMemoryError) as error:
            raise NoRoom(error) from None
        return {"slots": line.placements.count, "placement_bytes": line.placements.bytes}, line.placements.export()

    def untried(self, runner: Runner) -> int:
        """Return the number of placements at which a runner has made no call yet."""
        placements = self._lines[id(runner)].placements
        return len(placements.untried) if placements is not None else 0

    def conclude(self, runner: Runner) -> None:
        """Check that a runner did no work between its calls on this workload.

        Raises:
            RunnerFailed: it began calls before their requests.
        """
        self._lines[id(runner)].conduct.conclude()

    def memory(self, layout: Layout, workloads: int = 1) -> CudaMemory:
        """Return the judge's own copy of a workload's sets.

        Args:
            layout: the workload's inputs and outputs.
            workloads: not used: fewer calls would also show less of what a runner does between its calls.
        """
        del workloads
        return self.memory_for(layout, self.calibration.most_calls)

    @timed_as(JudgeStage.MEMORY)
    def memory_for(self, layout: Layout, max_sets: int) -> CudaMemory:
        """Return the judge's own copy of a workload's sets.

        Args:
            layout: the workload's inputs and outputs.
            max_sets: largest number of sets.
        """
        return CudaMemory(layout, min(max_sets, fitting_sets(layout)), self._scalars)

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Time calls by the judge's clock; some are held, and only the others count.

        Args:
            runner: a runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of each call.

        Raises:
            RunnerFailed: the candidate failed in a way that determines its verdict.
        """
        held_indices = held_calls(len(slots)) if not self._lines[id(runner)].is_trusted else frozenset[int]()

        def call(line: Line, cuda_memory: CudaMemory, index: int, placement: int) -> Reading:
            by = time.monotonic() + within_s
            return self._cycle.bounded(line, cuda_memory, slots[index], placement, hold=index in held_indices, by=by)

        return self._calls(runner, memory, len(slots), call, within_s, stop=True)

    def timed_batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Make calls that a trusted runner times by device events.

        Neither side's runner has host code of a candidate, so it is not stopped between batches.

        Args:
            runner: a trusted runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of each call.

        Raises:
            RunnerFailed: the candidate failed in a way that determines its verdict.
        """

        def call(line: Line, cuda_memory: CudaMemory, index: int, placement: int) -> Reading:
            return self._cycle.sealed(line, cuda_memory, slots[index], placement, by=time.monotonic() + within_s)

        return self._calls(runner, memory, len(slots), call, within_s, stop=False)

    def _calls(
        self,
        runner: Runner,
        memory: Memory,
        count: int,
        call: Callable[[Line, CudaMemory, int, int], Reading],
        within_s: float,
        *,
        stop: bool,
    ) -> Batch:
        """Continue the runner, make calls at random placements, stop it if asked to, and check memory and device."""
        assert isinstance(memory, CudaMemory)  # noqa: S101 - from `memory_for`
        line = self._lines[id(runner)]
        assert line.placements is not None  # noqa: S101 - the side was prepared
        identity, placements = secrets.randbits(62), line.placements.draw(count)
        self._runners.wait_for_ends()
        with self._cores.pinned(line, runner.processes.pin_main_thread):
            runner.processes.resume()
            try:
                runner.channel.check_nothing_unread()
                runner.channel.send_call(identity, ())
                readings = [call(line, memory, index, placement) for index, placement in enumerate(placements)]
                line.request(Request.END, time.monotonic() + _LOAD_S)
                done = runner.channel.expect(wire.Code.DONE, time.monotonic() + _LOAD_S)
            except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
                raise runner.failure(error, within_s) from None
            runner.accept(done)
            if done.call != identity:
                raise RunnerFailed(Verdict.REWARD_HACK, "forged an answer: it is not the answer to this call")
            if stop:
                runner.stop()
        before, self._sample = self._sample, self._nvml.sample(_SAMPLE_AGE_S)
        self._check_after_batch(line, memory, readings)
        disturbed = self._disturbed(before, self._sample)
        counted = [reading for reading in readings[1:] if not reading.was_held] or readings[:1]
        ns = round(count * middle_mean([reading.ns for reading in counted]))
        claimed = round(count * statistics.fmean(reading.claimed_ns for reading in counted))
        return Batch(ns=ns, claimed_ns=claimed, disturbed_ns=ns if disturbed else 0, readings=tuple(counted))

    def _check_after_batch(self, line: Line, memory: CudaMemory, readings: Sequence[Reading]) -> None:
        """Check that the runner changed nothing but the outputs of its calls, and that its device work has ended.

        Raises:
            RunnerFailed: inputs or captured outputs were written, calls began early, or the device remains busy.
        """
        inputs_changed, outputs_changed_late = memory.find_changes(line.runner)
        if id(line.runner) in self._trusted_runners:
            return
        if inputs_changed:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, "wrote to an input: inputs are read-only")
        if outputs_changed_late:
            raise RunnerFailed(Verdict.REWARD_HACK, "outputs changed after the call was answered")
        for reading in readings:
            line.conduct.add(reading)
        self._must_be_idle(self._sample)

    def _must_be_idle(self, sample: Sample) -> None:
        """Check that the device work of a stopped runner has ended, because it would slow the other side.

        Raises:
            RunnerFailed: the device remains busy, and no other process uses it.
        """
        end = time.monotonic() + _IDLE_WITHIN_S
        while True:
            begin = now_ns()
            self._probe.run()
            torch.cuda.synchronize()
            if now_ns() - begin < _BUSY_NS or sample.other_processes:
                return
            if time.monotonic() > end:
                raise RunnerFailed(Verdict.REWARD_HACK, "its device work went on after the batch had ended")

    def _disturbed(self, before: Sample, after: Sample) -> bool:
        self._throttled |= {*before.throttle, *after.throttle}
        self._max_other_processes = max(self._max_other_processes, before.other_processes, after.other_processes)
        return bool(before.throttle or after.throttle or before.other_processes or after.other_processes)

    def forget(self, runner: Runner) -> None:
        """End a runner, and with it its mappings, and release its memory."""
        self._cores.allow_sleep()
        self._runners.end(runner)
        line = self._lines.pop(id(runner), None)
        if line is not None:
            line.drop_memory()
            os.close(line.page)
        self._trusted_runners.discard(id(runner))

    def recalibrate(self) -> None:
        """Measure the overhead of a request with empty calls in a clean runner.

        A calibration's overhead is the 5th percentile of its calls, and the smallest one of all calibrations is
        subtracted. A shared host can be slow for a while, by a factor of up to two; this must not increase the overhead
        that is subtracted from later calls.
        """
        runner = self._runners.take(trusted=False)
        self._trusted_runners.add(id(runner))
        try:
            fields, descriptors = self.grant(runner)
            runner.ask({"op": "load", "language": "known", **fields}, wire.Code.LOADED, _LOAD_S, descriptors)
            layout = calibration_layout(3, 64)
            placement_fields, descriptors = self.place(runner, layout, _BOUNDED.most_calls)
            runner.ask({**layout.message(1, ""), **placement_fields}, wire.Code.READY, _LOAD_S, descriptors)
            memory = self.memory(layout)
            batches = [self.batch(runner, memory, range(memory.capacity), _LOAD_S) for _ in range(_CALIBRATIONS)]
            readings = [reading for batch in batches[1:] for reading in batch.readings]
            overhead_ns = statistics.quantiles((reading.ns - reading.claimed_ns for reading in readings), n=20)[0]
            self._min_overhead_ns = min(self._min_overhead_ns, max(0.0, overhead_ns))
            dispatch_ns = statistics.median(reading.claimed_ns for reading in readings)
            self.calibration = replace(_BOUNDED, call_overhead_ns=self._min_overhead_ns, dispatch_ns=dispatch_ns)
            self._calibrated_at = time.monotonic()
            self._probe_ns = self._cycle.idle_probe_ns(self._lines[id(runner)], time.monotonic() + _LOAD_S)
        finally:
            self.forget(runner)

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """Return the standard deviation of ln(latency) between processes, as measured for launches by a runner.

        Args:
            latency_ns: latency of a call.
            bound_ns: lower bound of the call's time on the device; 0.0 if it is not known.
        """
        return bounded_process_error(latency_ns, bound_ns)

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Return LAUNCH_BOUND for a call that is not much longer than a launch, else BOUNDED.

        Args:
            latency_ns: latency of a call by the judge's clock.
            claimed_ns: not used.
        """
        del claimed_ns
        bound = LAUNCH_BOUND * self.calibration.dispatch_ns
        return Trust.LAUNCH_BOUND if latency_ns < bound else Trust.BOUNDED

    def close(self) -> None:
        """End the waiting runners and release memory, files and the lock."""
        self._cores.allow_sleep()
        self._runners.close()
        self._pool.close()
        self._scalars.close()
        self._nvml.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._lock)
