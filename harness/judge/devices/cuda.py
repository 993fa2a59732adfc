"""A CUDA device: every batch in memory that its runner has never been able to see, and two clocks.

For a batch the judge takes fresh physical memory, copies the sets in, poisons the outputs, displaces L2, and only then
hands the descriptor over. **Bounded**: the judge's own clock from there until it has gathered secret positions of the
outputs. **Sealed**: the device's events around each call, read by a trusted process that runs no host code of the
candidate (or none but the problem's own); sets are veiled until their call. Either way the outputs are then copied out,
and the runner is stopped and its device found idle.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harness.errors import ConfigurationError
from harness.judge.channel import ChannelClosed, ChannelTimeout, MalformedRecord, RunnerRecord
from harness.judge.clock import LAUNCH_BOUND, dispatch_ns, handshake_ns, now_ns
from harness.judge.correctness import Summed
from harness.judge.cuda_builder import trusted_cubin
from harness.judge.devices.cuda_memory import Comparing, CudaMemory, Pieces, Places, poison
from harness.judge.devices.cuda_sealed import SealedClock
from harness.judge.devices.cuda_start import calibration_layout, runner_environment, take_memory_and_give_it_back
from harness.judge.devices.interface import Batch, Calibration, Device, Memory, T
from harness.judge.devices.lock import take_device_lock
from harness.judge.devices.nvml import Nvml, Sample
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
from harness.runner.cuda_arena import window
from harness.runner.device_memory import Physical, granularity
from harness.runner.driver import CudaError, Driver
from harness.runner.launcher import Trusted, Veil, renumber
from harness.sol.hardware import target_name

POSITIONS = 4096
"""Outputs looked at before the clock is stamped, eight bytes each."""
_SETS_BYTES = 2 * GIB
"""Inputs and outputs of one batch together, unless one set is larger."""
_WINDOW_BYTES = 32 * GIB
"""Addresses a runner reserves; memory behind them comes with each batch."""
_SCALAR_BYTES = 1 << 20
_AHEAD = 2
"""Runners kept started: a start takes seconds, and a candidate that breaks needs another."""
_BOUNDED = Calibration(0.0, 0.0, batch_ns=6_000_000, most_calls=128)
_PROBE_CYCLES = 40_000
_BUSY_NS = 400_000
"""A kernel of 20 us that takes so long shares the device: somebody else's time slice comes first."""
_IDLE_WITHIN_S = 0.2
_KNOWN_BYTES, _KNOWN_CALLS, _DISPATCHES = 1 << 20, 6, 128
_KEPT_SIZES = 4
_LOAD_S = 120.0
_INDUCTOR = "/inductor"


def open_cuda(ordinal: int, *, cache: Path, sandbox: SandboxKind) -> CudaDevice:
    """Open and lock the CUDA device of this number among those CUDA_VISIBLE_DEVICES shows.

    Raises:
        ConfigurationError: there is none, it lacks a library, or another judge holds it.
    """
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


@dataclass(frozen=True)
class _Sealed:
    """What the judge knows of a sealed runner: the key its sets are veiled with."""

    key: int


class CudaDevice:
    """One GPU, with the clock for code that needs a host: see the protocol `Device`."""

    memory_on = torch.device("cuda")
    languages: tuple[Language, ...] = ("cuda", "triton", "pytorch", "cute_dsl", "cuda_cpp")

    def __init__(self, nvml: Nvml, lock: int, *, cache: Path, sandbox: SandboxKind) -> None:
        self._nvml, self._lock = nvml, lock
        self.target = target_name(nvml.name)
        take_memory_and_give_it_back()
        torch.backends.cudnn.allow_tf32 = False  # what is expected is computed as the problem says
        self._driver = Driver()
        self._unit = granularity(self._driver)
        self._kept: dict[int, tuple[Physical, int]] = {}
        self._window, self._bytes = window(self._driver, _WINDOW_BYTES)
        self._cubin = trusted_cubin(cache)
        self._trusted = Trusted(self._driver, self._cubin)
        self.summed: Summed = Comparing(self._trusted)
        self.copy_all: CopyAll | None = Pieces(self._trusted)
        self._secret = torch.Generator(device="cuda").manual_seed(secrets.randbits(63))
        self._scratch = Path(tempfile.mkdtemp(prefix="kernel-harness-judge-"))
        self._inductor = cache / "inductor-cuda"
        self._inductor.mkdir(parents=True, exist_ok=True)
        self._plan = RunnerPlan(
            sandbox=sandbox,
            limits=SandboxLimits(address_space_bytes=None, memory_bytes=32 * GIB),
            scratch=self._scratch,
            env=runner_environment(nvml.uuid),
            devices=tuple(str(path) for path in sorted(Path("/dev").glob("nvidia*"))),
        )
        self._standby = Standby(lambda: Runner(self._plan), ahead=_AHEAD)
        self._trusted_standby = Standby(self._start_trusted)
        self._scalars = Region(_SCALAR_BYTES, sealed=True)
        self._sealed_runners: dict[int, _Sealed] = {}
        self._trusted_runners: set[int] = set()
        self._throttled: set[str] = set()
        self._looked = nvml.look()
        self._probe = self._trusted.known(_PROBE_CYCLES)
        self.calibration = _BOUNDED
        self.sealed = SealedClock(self, self._trusted.pair_overhead_us() * 1e3)
        self.recalibrate()

    def clock(self, *, sealed: bool) -> Device:
        """This, or the clock by the device's events."""
        return self.sealed if sealed else self

    def record(self) -> DeviceRecord:
        """Name, id, driver, the clocks as they are, what slowed it down since the last record."""
        now = self._nvml.look()
        throttled, self._throttled = sorted(self._throttled), set()
        return DeviceRecord.model_validate(
            {
                "name": self._nvml.name,
                "id": self._nvml.uuid,
                "driver": self._nvml.driver,
                "cuda": torch.version.cuda,
                "clocks_mhz": {"sm": now.sm_mhz, "memory": now.memory_mhz},
                "power_w": now.power_w,
                "throttle": throttled,
                "others": now.others,
                "handshake_us": round(self.calibration.handshake_ns / 1e3, 1),
                "dispatch_us": round(self.calibration.dispatch_ns / 1e3, 2),
                "events_us": round(self.sealed.calibration.around_ns / 1e3, 2),
            }
        )

    def runner(self, *, trusted: bool = False) -> Runner:
        """A fresh runner: a standby, or for the reference one with its compiler cache."""
        if not trusted:
            return self._standby.take()
        runner = self._trusted_standby.take()
        self._trusted_runners.add(id(runner))
        return runner

    def _start_trusted(self) -> Runner:
        """The reference's next runner: with a compiler cache that no candidate can write."""
        confined = self._plan.sandbox == "bubblewrap"
        inside = _INDUCTOR if confined else str(self._inductor)
        env = {**self._plan.env, "TORCHINDUCTOR_CACHE_DIR": inside, "TRITON_CACHE_DIR": f"{inside}/triton"}
        return Runner(replace(self._plan, env=env), writable={self._inductor: inside} if confined else None)

    def all_processors(self) -> contextlib.AbstractContextManager[None]:
        """The judge's own work is on the device."""
        return contextlib.nullcontext()

    def each(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """One after the other: the device is what is busy."""
        return [work(slot) for slot in slots]

    def start_standby(self) -> None:
        """Start the next runners ahead, the reference's too."""
        self._standby.start()
        self._trusted_standby.start()

    def settle(self) -> None:
        """Wait for the standbys' start-up: a context that is being made disturbs the device."""
        self._standby.settle()
        self._trusted_standby.settle()

    def reserve(self, problem: Problem, layouts: Sequence[Layout]) -> bool:
        """Nothing: memory comes with each batch."""
        del problem, layouts
        return False

    def grant(self, runner: Runner, *, veiled: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """The sizes, and the scalars. What the window holds is shown batch by batch."""
        del runner, veiled
        return {"window_bytes": _WINDOW_BYTES, "scalar_bytes": self._scalars.bytes}, (self._scalars.descriptor,)

    def grant_timed(self, runner: Runner, *, veiled: bool) -> tuple[dict[str, object], tuple[int, ...]]:
        """Like `grant`, for a trusted process that reads the device's events; veiled: of a candidate's kernels."""
        words, descriptors = self.grant(runner)
        cubin = runner.stage / "trusted.cubin"
        cubin.write_bytes(self._cubin)
        words |= {"trusted": runner.inside(cubin), "timed": True}
        if veiled:
            sealed = self._sealed_runners[id(runner)] = _Sealed(secrets.randbits(64))
            words["veil"] = sealed.key
        return words, descriptors

    def memory(self, layout: Layout) -> CudaMemory:
        """The judge's own copy of a workload's sets."""
        return self.memory_for(layout, self.calibration.most_calls)

    def memory_for(self, layout: Layout, most: int) -> CudaMemory:
        """So many sets at most."""
        fits = _SETS_BYTES // (layout.input_stride + layout.output_stride)
        scalars = self._scalars.bytes // (8 * max(1, len(layout.inputs)))
        return CudaMemory(layout, max(1, min(most, fits, scalars)), self._scalars)

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """On the judge's clock, handshake included."""
        return self.exchange(runner, memory, slots, within_s, kept=False)

    def exchange(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float, *, kept: bool) -> Batch:
        """Fresh memory, copy, poison, displace, hand over, time, gather, stamp, copy out, stop (see the module).

        `kept`: our own programs get the same memory again. Not on the judge's clock, where new memory costs time on
        one side of a ratio and so must on the other.
        """
        assert isinstance(memory, CudaMemory)  # noqa: S101 - this device made it
        trusted = id(runner) in self._trusted_runners
        calls, call = len(slots), secrets.randbits(62)
        runner.herd.go()
        veiled = self._sealed_runners.get(id(runner))
        own = trusted or veiled is not None
        with self._fresh(calls * memory.stride, kept=own and kept) as (arena, descriptor):
            rows = arena[: calls * memory.stride].view(calls, memory.stride)
            given, outputs = rows[:, : memory.layout.input_stride], rows[:, memory.layout.input_stride :]
            self._put(veiled, memory, given, call)
            poison(outputs, memory.layout)
            memory.places = memory.places or Places(memory.layout, self._secret)
            seen_at, copied_at = memory.places.draw(calls, POSITIONS)
            sample = torch.empty(POSITIONS, dtype=torch.int64, device="cuda")
            words = arena[: calls * memory.stride].view(torch.int64)
            self._trusted.displace.run()
            torch.cuda.synchronize()
            record, begin = self._ask(runner, call, slots, descriptor, within_s)
            torch.index_select(words, 0, seen_at, out=sample)
            torch.cuda.synchronize()
            end = now_ns()
            copied = outputs.clone(memory_format=torch.contiguous_format)
            one = secrets.randbelow(calls)
            looks = [(copied.view(-1).view(torch.int64)[copied_at] == sample).all()]
            if not own:
                looks.append((given[one] == memory.given[one]).all())
            honest, *untouched = torch.stack(looks).tolist()
            self._let_go(runner, record, call)
        if not honest:
            raise RunnerFailed(Verdict.REWARD_HACK, "outputs changed after the clock had stopped")
        if not all(untouched):
            raise RunnerFailed(Verdict.RUNTIME_ERROR, "wrote to an input: inputs can only be read")
        memory.taken[id(runner)] = copied
        before, self._looked = self._looked, self._nvml.look()
        if not trusted:
            self._must_be_idle(self._looked)
        disturbed = self._disturbed(before, self._looked)
        return Batch(ns=end - begin, claimed_ns=record.claimed_ns, disturbed_ns=end - begin if disturbed else 0)

    @contextlib.contextmanager
    def _fresh(self, size: int, *, kept: bool) -> Iterator[tuple[torch.Tensor, int]]:
        """Physical memory that nobody untrusted has seen: its bytes, and the descriptor that reveals it.

        `kept`: only our own programs see it, so that what the last batch of this size lay in does.
        """
        try:
            physical, descriptor = self._kept_memory(size) if kept else self._new_memory(size)
        except CudaError as error:
            raise NoRoom(error) from None
        try:
            self._window.show(physical)
            yield self._bytes, descriptor
        finally:
            self._window.hide()
            if not kept:
                os.close(descriptor)
                physical.close()

    def _new_memory(self, size: int) -> tuple[Physical, int]:
        physical = Physical.create(self._driver, size)
        try:
            return physical, physical.descriptor()
        except CudaError:
            physical.close()
            raise

    def _kept_memory(self, size: int) -> tuple[Physical, int]:
        """Memory that only our own programs see."""
        rounded = -(-size // self._unit) * self._unit
        if rounded not in self._kept:
            while len(self._kept) >= _KEPT_SIZES:
                physical, descriptor = self._kept.pop(next(iter(self._kept)))
                os.close(descriptor)
                physical.close()
            self._kept[rounded] = self._new_memory(size)
        return self._kept[rounded]

    def _put(self, sealed: _Sealed | None, memory: CudaMemory, given: torch.Tensor, call: int) -> None:
        """Copy the sets to where the runner will see them; for a sealed one veiled, numbered by the batch's secret."""
        if sealed is None:
            given.copy_(memory.given[: len(given)])
            return
        size = memory.layout.input_stride
        for slot in range(len(given)):
            source, target = memory.given[slot].data_ptr(), given[slot].data_ptr()
            launch = self._trusted.veil(source, target, size, Veil(sealed.key, 0), slot)
            renumber(launch, call + slot)
            launch.run()

    def _ask(
        self, runner: Runner, call: int, slots: Sequence[int], descriptor: int, within_s: float
    ) -> tuple[RunnerRecord, int]:
        channel = runner.channel
        try:
            channel.must_be_silent()
            begin = now_ns()
            channel.send_call(call, slots, (descriptor,))
            return channel.receive(time.monotonic() + within_s, spin=True), begin
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise runner.failure(error, within_s) from None

    def _let_go(self, runner: Runner, record: RunnerRecord, call: int) -> None:
        """Take in what the runner said, wait until it has let go of the batch's memory, and stop it."""
        runner.accept(record)
        if record.code is not wire.Code.DONE or record.call != call:
            raise RunnerFailed(Verdict.REWARD_HACK, "forged an answer: it is not the answer to this call")
        try:
            last = runner.channel.expect(wire.Code.IDLE, time.monotonic() + _LOAD_S)
        except (ChannelClosed, ChannelTimeout, MalformedRecord) as error:
            raise runner.failure(error, _LOAD_S) from None
        runner.accept(last)
        if last.call != call:
            raise RunnerFailed(Verdict.REWARD_HACK, "forged an answer: it is not the answer to this call")
        runner.stop()

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
        return bool(before.throttle or after.throttle or before.others or after.others)

    def forget(self, runner: Runner) -> None:
        """End a runner. Its mappings end with it."""
        runner.kill()
        self._sealed_runners.pop(id(runner), None)
        self._trusted_runners.discard(id(runner))

    def recalibrate(self) -> None:
        """Measure handshake and launch cost in a clean runner, with kernels of known length."""
        runner = self._standby.take()
        self._trusted_runners.add(id(runner))
        try:
            words, descriptors = self.grant(runner)
            runner.ask({"op": "load", "language": "known", **words}, wire.Code.LOADED, _LOAD_S, descriptors)

            def batches(layout: Layout, calls: int) -> Callable[[], Batch]:
                memory = self.memory(layout)
                runner.ask(layout.message(calls, ""), wire.Code.READY, _LOAD_S)
                return lambda: self.batch(runner, memory, range(calls), _LOAD_S)

            handshake = handshake_ns(batches(calibration_layout(1, _KNOWN_BYTES), _KNOWN_CALLS))
            dispatch = dispatch_ns(batches(calibration_layout(3, 64), _DISPATCHES), _DISPATCHES)
            self.calibration = replace(_BOUNDED, handshake_ns=handshake, dispatch_ns=dispatch)
        finally:
            self.forget(runner)

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """A call that is not much longer than a launch measures the launch."""
        del claimed_ns
        bound = LAUNCH_BOUND * self.calibration.dispatch_ns
        return Trust.LAUNCH_BOUND if latency_ns < bound else Trust.BOUNDED

    def close(self) -> None:
        """End the standbys and give everything back."""
        self._standby.close()
        self._trusted_standby.close()
        self._scalars.close()
        self._nvml.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._lock)
