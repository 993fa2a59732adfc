"""A CUDA device: calls made one at a time in memory that the judge controls, and two clocks.

**Bounded**: the judge's own clock, from the request for a call until secret positions of its outputs have arrived.
**Sealed**: the device's events around each call, read by a trusted process that runs no host code of the candidate (or
none but the problem's own). ADR 30 has the protocol and docs/clock.md what was measured.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from harness.errors import ConfigurationError
from harness.judge.channel import ChannelClosed, ChannelTimeout, MalformedRecord
from harness.judge.clock import LAUNCH_BOUND, now_ns
from harness.judge.correctness import Summed
from harness.judge.cuda_builder import trusted_cubin
from harness.judge.devices.cuda_conduct import Conduct
from harness.judge.devices.cuda_cycle import Cycle, Line
from harness.judge.devices.cuda_environment import device_nodes, runner_environment
from harness.judge.devices.cuda_memory import Comparing, CudaMemory, Pieces
from harness.judge.devices.cuda_placements import PlacementPool
from harness.judge.devices.cuda_sealed import SealedClock
from harness.judge.devices.cuda_start import calibration_layout, take_memory_and_give_it_back
from harness.judge.devices.cuda_statistics import bounded_process_error, held_calls, middle_mean, process_offset_ns
from harness.judge.devices.interface import Batch, Calibration, Device, Memory, Reading, T
from harness.judge.devices.lock import take_device_lock
from harness.judge.devices.mps import require_no_mps
from harness.judge.devices.nvml import Nvml, Sample
from harness.judge.devices.processors import TimingCores
from harness.judge.layout import Layout
from harness.judge.limits import GIB, SandboxLimits
from harness.judge.memory import Region
from harness.judge.pieces import CopyAll
from harness.judge.runners import NoRoom, Runner, RunnerFailed, RunnerPlan, Standby
from harness.model.config import SandboxKind
from harness.model.judging import DeviceRecord
from harness.model.problem import Problem
from harness.model.solution import Language
from harness.model.verdict import Trust, Verdict
from harness.runner import wire
from harness.runner.device_memory import granularity
from harness.runner.doorbell import Request, create_page
from harness.runner.driver import CudaError
from harness.runner.launcher import Trusted
from harness.sol.hardware import target_name
from harness.workspace import timing_lock

_SETS_BYTES = 2 * GIB
"""Inputs and outputs of one batch together, unless one set is larger."""
_WINDOW_BYTES = 32 * GIB
"""Addresses a runner reserves; memory behind them comes with each workload."""
_SCALAR_BYTES = 1 << 20
_AHEAD = 4
"""Runners kept started: a start takes seconds, and a candidate that breaks needs another."""
_BOUNDED = Calibration(0.0, 0.0, batch_ns=6_000_000, most_calls=10, separate_calls=True, work_outlasts_stop=True)
_PROBE_CYCLES = 40_000
_BUSY_NS = 400_000
"""A kernel of 20 us that takes so long shares the device: somebody else's time slice comes first."""
_IDLE_WITHIN_S = 0.2
_CALIBRATIONS = 12
"""Batches of calls that do nothing; the first is not counted."""
_LOAD_S = 120.0
_INDUCTOR = "/inductor"


def open_cuda(ordinal: int, *, cache: Path, sandbox: SandboxKind) -> CudaDevice:
    """Open and lock the CUDA device of this number among those CUDA_VISIBLE_DEVICES shows.

    Raises:
        ConfigurationError: there is none, it lacks a library, or another judge holds it.
        HostFaultError: MPS is active.
    """
    require_no_mps()
    nvml = Nvml(ordinal)
    os.environ["CUDA_VISIBLE_DEVICES"] = nvml.uuid  # ours and every runner's only device, number 0 from here on
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "no CUDA device is usable: torch sees none",
            where="--device cuda",
            remedy="install a driver and a CUDA build of torch, or use --device cpu",
        )
    lock = take_device_lock(f"cuda-{nvml.uuid}", f"cuda:{ordinal} ({nvml.name})")
    return CudaDevice(nvml, lock, cache=cache, sandbox=sandbox)


class CudaDevice:
    """One GPU, with the clock for code that needs a host: see the protocol `Device`."""

    memory_on = torch.device("cuda")
    languages: tuple[Language, ...] = ("cuda", "triton", "pytorch", "cute_dsl", "cuda_cpp")

    def __init__(self, nvml: Nvml, lock: int, *, cache: Path, sandbox: SandboxKind) -> None:
        self._nvml, self._lock = nvml, lock
        self.target = target_name(nvml.name)
        take_memory_and_give_it_back()
        torch.backends.cudnn.allow_tf32 = False  # what is expected is computed as the problem says
        self._pool = PlacementPool(granularity())
        self._cubin = trusted_cubin(cache)
        self._trusted = Trusted(self._cubin)
        self.summed: Summed = Comparing(self._trusted)
        self.copy_all: CopyAll | None = Pieces(self._trusted)
        self._cores = TimingCores(frozenset(os.sched_getaffinity(0)), nvml.processors_of_gpus(), nvml.index)
        self._scratch = Path(tempfile.mkdtemp(prefix="kernel-harness-judge-"))
        self._inductor = cache / "inductor-cuda"
        self._inductor.mkdir(parents=True, exist_ok=True)
        self._plan = RunnerPlan(
            sandbox=sandbox,
            limits=SandboxLimits(cpus=self._cores.of_runners, address_space_bytes=None, memory_bytes=32 * GIB),
            scratch=self._scratch,
            env=runner_environment(nvml.uuid),
            devices=device_nodes(),
            warms=True,
            imports_apart=self._cores.are_apart,
        )
        self._standby = Standby(lambda: Runner(self._plan), ahead=_AHEAD)
        self._trusted_standby = Standby(self._start_trusted)
        self._scalars = Region(_SCALAR_BYTES, sealed=True)
        self._lines: dict[int, Line] = {}
        self._trusted_runners: set[int] = set()
        self._throttled: set[str] = set()
        self._most_others = 0
        self._looked = nvml.look()
        self._probe = self._trusted.known(_PROBE_CYCLES)
        self._probe_ns = float(_BUSY_NS)
        self._cycle = Cycle(self._trusted, self._probe)
        self._least_around_ns = math.inf
        self.calibration = _BOUNDED
        self._short_kernel_ns = self._trusted.short_kernel_us() * 1e3
        self._calibrated_at = 0.0
        self.sealed = SealedClock(self, self._trusted.pair_overhead_us() * 1e3)
        self.recalibrate()

    def clock(self, *, sealed: bool) -> Device:
        """This, or the clock by the device's events."""
        return self.sealed if sealed else self

    def record(self) -> DeviceRecord:
        """Name, id, driver, the clocks as they are, what slowed it down and who used it since the last record."""
        now = self._nvml.look()
        throttled, self._throttled = sorted(self._throttled), set()
        others, self._most_others = max(now.others, self._most_others), 0
        return DeviceRecord.model_validate(
            {
                "name": self._nvml.name,
                "id": self._nvml.uuid,
                "driver": self._nvml.driver,
                "cuda": torch.version.cuda,
                "clocks_mhz": {"sm": now.sm_mhz, "memory": now.memory_mhz},
                "power_w": now.power_w,
                "throttle": throttled,
                "others": others,
                "around_us": round(self.calibration.around_ns / 1e3, 2),
                "dispatch_us": round(self.calibration.dispatch_ns / 1e3, 2),
                "events_us": round(self.sealed.calibration.around_ns / 1e3, 2),
                "calibration_age_s": round(time.monotonic() - self._calibrated_at),
            }
        )

    def runner(self, *, trusted: bool = False, needs_torch: bool = True) -> Runner:
        """A fresh runner: a standby, or for the reference one with its compiler cache. All have torch."""
        del needs_torch
        if not trusted:
            return self._standby.take()
        runner = self._trusted_standby.take()
        self._trusted_runners.add(id(runner))
        return runner

    def _start_trusted(self) -> Runner:
        """The reference's next runner: with a compiler cache that no candidate can write."""
        confined = self._plan.sandbox == "bubblewrap"
        inside = _INDUCTOR if confined else str(self._inductor)
        env = {
            **self._plan.env,
            "TORCHINDUCTOR_CACHE_DIR": inside,
            "TRITON_CACHE_DIR": f"{inside}/triton",
            "FLASHINFER_WORKSPACE_BASE": inside,  # its compiled kernels
        }
        return Runner(replace(self._plan, env=env), writable={self._inductor: inside} if confined else None)

    def all_processors(self) -> AbstractContextManager[None]:
        """The judge's own work is on the device."""
        return nullcontext()

    def timing(self) -> AbstractContextManager[None]:
        """Beside other judges' timings where this one has cores of its own; alone on this host otherwise."""
        return timing_lock.timing_apart() if self._cores.are_apart else timing_lock.timing()

    def each(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """One after the other: the device is what is busy."""
        return [work(slot) for slot in slots]

    def start_standby(self) -> None:
        """Start the next runners ahead, the reference's too.

        Raises:
            HostFaultError: MPS is active.
        """
        require_no_mps()
        self._standby.start()
        self._trusted_standby.start()

    def settle(self) -> None:
        """Wait for the standbys' start-up: a context that is being made disturbs the device."""
        self._standby.settle()
        self._trusted_standby.settle()
        self._cores.stay_awake()

    def reserve(self, problem: Problem, layouts: Sequence[Layout]) -> bool:
        """Nothing: memory comes with each workload."""
        del problem, layouts
        return False

    def aside(self, layouts: Sequence[Layout]) -> AbstractContextManager[None]:
        """Nothing: memory comes with each workload and each runner."""
        del layouts
        return nullcontext()

    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """The size of the address window, the scalars and a doorbell."""
        page = create_page()
        ours = sealed or id(runner) in self._trusted_runners
        self._lines[id(runner)] = Line(runner, page, ours, Conduct(self._probe_ns))
        words: dict[str, object] = {"window_bytes": _WINDOW_BYTES, "scalar_bytes": self._scalars.bytes}
        return words, (self._scalars.descriptor, page)

    def grant_timed(self, runner: Runner, *, sealed: bool) -> tuple[dict[str, object], tuple[int, ...]]:
        """Like `grant`, for a trusted process that reads the device's events; `sealed`: of a candidate's kernels."""
        words, descriptors = self.grant(runner, sealed=sealed)
        cubin = runner.stage / "trusted.cubin"
        cubin.write_bytes(self._cubin)
        return {**words, "trusted": runner.inside(cubin), "timed": True}, descriptors

    def loaded(self, runner: Runner, short_kernel_ns: int) -> None:
        """Correct a runner's event readings by what its process reads more, or less, than the judge's."""
        if short_kernel_ns:
            self._lines[id(runner)].offset_ns = process_offset_ns(short_kernel_ns, self._short_kernel_ns)

    def place(self, runner: Runner, layout: Layout, slots: int) -> tuple[dict[str, object], tuple[int, ...]]:
        """New placements for a runner's next workload, in place of those of the last one."""
        del slots
        line = self._lines[id(runner)]
        line.drop_memory()
        line.conduct, line.has_served = Conduct(self._probe_ns), False
        try:
            line.placements = self._pool.take(layout)
        except (CudaError, torch.OutOfMemoryError) as error:
            raise NoRoom(error) from None
        return {"slots": line.placements.count, "placement_bytes": line.placements.bytes}, line.placements.export()

    def untried(self, runner: Runner) -> int:
        """Placements at which a runner has made no call yet."""
        placements = self._lines[id(runner)].placements
        return len(placements.untried) if placements is not None else 0

    def conclude(self, runner: Runner) -> None:
        """Judge what a runner did between its calls on this workload.

        Raises:
            RunnerFailed: it began calls before they were made.
        """
        self._lines[id(runner)].conduct.conclude()

    def memory(self, layout: Layout) -> CudaMemory:
        """The judge's own copy of a workload's sets."""
        return self.memory_for(layout, self.calibration.most_calls)

    def memory_for(self, layout: Layout, most: int) -> CudaMemory:
        """So many sets at most."""
        fits = _SETS_BYTES // (layout.input_stride + layout.output_stride)
        return CudaMemory(layout, max(1, min(most, fits)), self._scalars)

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Calls by the judge's clock; some are held, and only the others count."""
        held = held_calls(len(slots)) if not self._lines[id(runner)].ours else frozenset[int]()

        def call(line: Line, where: CudaMemory, index: int, placement: int) -> Reading:
            by = time.monotonic() + within_s
            return self._cycle.bounded(line, where, slots[index], placement, hold=index in held, by=by)

        return self._calls(runner, memory, len(slots), call, within_s)

    def timed_batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Calls by the device's events."""

        def call(line: Line, where: CudaMemory, index: int, placement: int) -> Reading:
            return self._cycle.sealed(line, where, slots[index], placement, by=time.monotonic() + within_s)

        return self._calls(runner, memory, len(slots), call, within_s)

    def _calls(
        self,
        runner: Runner,
        memory: Memory,
        count: int,
        call: Callable[[Line, CudaMemory, int, int], Reading],
        within_s: float,
    ) -> Batch:
        """Let the runner go on, make calls at random placements, stop it, and look at what it left."""
        assert isinstance(memory, CudaMemory)  # noqa: S101 - this device made it
        line = self._lines[id(runner)]
        assert line.placements is not None  # noqa: S101 - the side was prepared
        identity, places = secrets.randbits(62), line.placements.draw(count)
        with self._cores.kept_for(line, runner.herd.pin_main_thread):
            runner.herd.go()
            try:
                runner.channel.must_be_silent()
                runner.channel.send_call(identity, ())
                readings = [call(line, memory, index, place) for index, place in enumerate(places)]
                line.request(Request.END, time.monotonic() + _LOAD_S)
                done = runner.channel.expect(wire.Code.DONE, time.monotonic() + _LOAD_S)
            except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
                raise runner.failure(error, within_s) from None
            runner.accept(done)
            if done.call != identity:
                raise RunnerFailed(Verdict.REWARD_HACK, "forged an answer: it is not the answer to this call")
            runner.stop()
        before, self._looked = self._looked, self._nvml.look()
        self._look_at(line, memory, readings)
        disturbed = self._disturbed(before, self._looked)
        counted = [reading for reading in readings[1:] if not reading.held] or readings[:1]
        ns = round(count * middle_mean([reading.ns for reading in counted]))
        claimed = round(count * statistics.fmean(reading.claimed_ns for reading in counted))
        return Batch(ns=ns, claimed_ns=claimed, disturbed_ns=ns if disturbed else 0, readings=tuple(counted))

    def _look_at(self, line: Line, memory: CudaMemory, readings: Sequence[Reading]) -> None:
        """Refuse what an honest runner never leaves behind.

        Raises:
            RunnerFailed: inputs or captured outputs were written, calls began early, or the device stays busy.
        """
        wrote, later = memory.find_changes(line.runner)
        if id(line.runner) in self._trusted_runners:
            return
        if wrote:
            raise RunnerFailed(Verdict.RUNTIME_ERROR, "wrote to an input: inputs can only be read")
        if later:
            raise RunnerFailed(Verdict.REWARD_HACK, "outputs changed after the call was answered")
        for reading in readings:
            line.conduct.add(reading)
        self._must_be_idle(self._looked)

    def _must_be_idle(self, sample: Sample) -> None:
        """A stopped runner starts nothing; what it started before must have ended, or the next side pays for it.

        Raises:
            RunnerFailed: the device stays busy, and nobody else is on it.
        """
        end = time.monotonic() + _IDLE_WITHIN_S
        while True:
            begin = now_ns()
            self._probe.run()
            torch.cuda.synchronize()
            if now_ns() - begin < _BUSY_NS or sample.others:
                return
            if time.monotonic() > end:
                raise RunnerFailed(Verdict.REWARD_HACK, "its device work went on after the batch had ended")

    def _disturbed(self, before: Sample, after: Sample) -> bool:
        self._throttled |= {*before.throttle, *after.throttle}
        self._most_others = max(self._most_others, before.others, after.others)
        return bool(before.throttle or after.throttle or before.others or after.others)

    def forget(self, runner: Runner) -> None:
        """End a runner and give its memory back. Its own mappings end with it."""
        self._cores.rest()
        runner.kill()
        line = self._lines.pop(id(runner), None)
        if line is not None:
            line.drop_memory()
            os.close(line.page)
        self._trusted_runners.discard(id(runner))

    def recalibrate(self) -> None:
        """Measure what a call costs beyond what its runner does, in a clean runner, with calls that do nothing.

        The least of all calibrations counts, and of each the twentieth part of its calls: a host that is slow for a
        while (up to twice as slow where it is shared) must not make the clock subtract more from quick calls later.
        """
        runner = self._standby.take()
        self._trusted_runners.add(id(runner))
        try:
            words, descriptors = self.grant(runner)
            runner.ask({"op": "load", "language": "known", **words}, wire.Code.LOADED, _LOAD_S, descriptors)
            layout = calibration_layout(3, 64)
            placed, descriptors = self.place(runner, layout, 1)
            runner.ask({**layout.message(1, ""), **placed}, wire.Code.READY, _LOAD_S, descriptors)
            memory = self.memory(layout)
            batches = [self.batch(runner, memory, range(memory.capacity), _LOAD_S) for _ in range(_CALIBRATIONS)]
            readings = [reading for batch in batches[1:] for reading in batch.readings]
            around = statistics.quantiles((each.ns - each.claimed_ns for each in readings), n=20)[0]
            self._least_around_ns = min(self._least_around_ns, max(0.0, around))
            dispatch = statistics.median(each.claimed_ns for each in readings)
            self.calibration = replace(_BOUNDED, around_ns=self._least_around_ns, dispatch_ns=dispatch)
            self._calibrated_at = time.monotonic()
            self._probe_ns = self._cycle.probe_beside(self._lines[id(runner)], time.monotonic() + _LOAD_S)
        finally:
            self.forget(runner)

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """As measured for launches by a runner (docs/clock.md): a share of the time in which the host may decide."""
        return bounded_process_error(latency_ns, bound_ns)

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """A call that is not much longer than a launch measures the launch."""
        del claimed_ns
        bound = LAUNCH_BOUND * self.calibration.dispatch_ns
        return Trust.LAUNCH_BOUND if latency_ns < bound else Trust.BOUNDED

    def close(self) -> None:
        """End the standbys and give everything back."""
        self._cores.rest()
        self._standby.close()
        self._trusted_standby.close()
        self._pool.close()
        self._scalars.close()
        self._nvml.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._lock)
