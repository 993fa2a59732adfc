"""The judge's memory and clock, its runners, and each protocol's cycle of one call."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cells import PINGED, Cell
from .device import DryGpu, Gpu, i32, i64, u32, u64
from .doorbell import (
    BATCH,
    CALL,
    PAGE_BYTES,
    PING,
    RUNNER_NS,
    SEQUENCE,
    Doorbell,
    NoAnswerError,
)
from .memory import Sets
from .runner import RunnerPlan, launch_service

_FLUSH_BYTES = 256 << 20
_PROBE_CYCLES = 10_000
_START_S = 20.0
_AWAY_S = 5.0
_MOST_ROWS = 4096
_LOOKS, _POISON = 256, 0xFFFFFFFF
"""Output words looked at after a hold, before t0."""
_GRID = (1056,)
_LEAST_CORES = 4
"""Judge, candidate and baseline have a core each, where cells ask for it."""
now = time.perf_counter_ns


@dataclass
class Side:
    """One runner and its sets, as the judge sees them."""

    cell: Cell
    pid: int
    bell: Doorbell
    sets: Sets
    elements: int
    rounds: int

    def addresses(self, placement: int) -> tuple[int, int]:
        """Inputs and outputs at a placement."""
        at = placement * self.sets.stride
        return self.sets.inputs + at, self.sets.outputs + at


class Cycles:
    """One context, one clock, one runner at a time (two where a baseline is timed beside a candidate)."""

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        self.cores = sorted(os.sched_getaffinity(0))
        self.can_pin = len(self.cores) >= _LEAST_CORES
        self.pages = mmap.mmap(-1, 2 * PAGE_BYTES)
        if not dry:
            import cupy  # noqa: F401 - before the fork, so that runners start quickly
            from cuda.bindings import driver  # noqa: F401
        self.service = launch_service(self.pages)
        gpu: Any = DryGpu() if dry else Gpu()
        self.gpu = gpu
        self.stream = gpu.stream()
        self.flush, self.sink = gpu.allocate(_FLUSH_BYTES), gpu.allocate(64)
        self.counts = gpu.allocate(8 * _MOST_ROWS)
        self.private_bytes = 0
        self.staging = self.captured = self.host_in = self.host_out = self.host_flush = self.look = 0
        self.look_words = memoryview(bytes(4)).cast("I")
        self.row = 0

    def begin(self) -> None:
        """Forget the counts of the cell before."""
        self.row = 0
        self.gpu.synchronize(self.stream)
        self.gpu.zero(self.counts, 8 * _MOST_ROWS)

    # --- sides ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def side(self, cell: Cell, adversary: str, page: int = 0, rounds: int | None = None) -> Iterator[Side]:
        """Memory and a runner, ended afterwards whatever happens."""
        set_bytes = int(cell.megabytes * (1 << 20))
        self._private(set_bytes)
        sets, descriptors = Sets.create(self.gpu, cell.sets, set_bytes)
        elements = set_bytes // 4
        pid = 0
        try:
            if rounds is None:
                rounds = self._rounds(sets, elements, cell.kernel_us)
            bell = Doorbell(self.pages, page)
            bell.clear()
            core = self.cores[-1 - page] if cell.pinned and self.can_pin else -1
            plan = RunnerPlan(adversary, page, cell.sets, set_bytes, elements, rounds, core, self.dry)
            pid = self._start(plan, descriptors)
            yield Side(cell, pid, bell, sets, elements, rounds)
        finally:
            if pid:
                self._end(pid)
            self.gpu.synchronize(self.stream)
            sets.close()

    def _start(self, plan: RunnerPlan, descriptors: list[int]) -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self.service, [json.dumps(asdict(plan)).encode()], [theirs.fileno()])
            theirs.close()
            for begin in range(0, len(descriptors), 200):
                socket.send_fds(ours, [b"."], descriptors[begin : begin + 200])
            for descriptor in descriptors:
                os.close(descriptor)
            ours.settimeout(_START_S)
            answer = ours.recv(256)
        if not answer:
            raise NoAnswerError("the runner ended before it was ready")
        return int(json.loads(answer)["pid"])

    def _end(self, pid: int) -> None:
        """Kill a runner with its helpers, and wait until its context is gone."""
        for name in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, name)
        deadline = time.monotonic() + _AWAY_S
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.002)

    def _private(self, size: int) -> None:
        if size > self.private_bytes:
            for address in (self.staging, self.captured):
                if address:
                    self.gpu.free(address)
            self.staging, self.captured = self.gpu.allocate(size), self.gpu.allocate(size)
            self.gpu.free_pinned()
            self.host_in, self.host_out = self.gpu.pinned(size)[0], self.gpu.pinned(size)[0]
            self.host_flush = self.gpu.pinned(_FLUSH_BYTES // 2)[0]
            self.look, look_words = self.gpu.pinned(4 * _LOOKS)
            self.look_words = look_words.cast("B").cast("I")
            self.private_bytes = size

    def _rounds(self, sets: Sets, elements: int, target_us: float) -> int:
        """Rounds of the loop with which a kernel takes `target_us` with cold data; at least 0."""
        if not target_us:
            return 0
        few, many = 100, 4100
        low, high = (self.kernel_us(sets, elements, rounds) for rounds in (few, many))
        slope = max((high - low) / (many - few), 1e-4)
        return max(0, int(few + (target_us - low) / slope))

    def kernel_us(self, sets: Sets, elements: int, rounds: int) -> float:
        """Duration of the workload alone with cold data, by events around it, less those around an empty kernel."""
        gpu, readings = self.gpu, {"work": list[float](), "empty": list[float]()}
        grid = (-(-elements // 256),)
        for turn in range(12):
            for name, found in readings.items():
                begin, end = gpu.event(), gpu.event()
                at = turn % sets.count * sets.stride
                self._read_all()
                begin.record(self.stream)
                if name == "work":
                    arguments = u64(sets.inputs + at), u64(sets.outputs + at), i32(elements), i32(rounds)
                    gpu.launch("work", grid, arguments, self.stream)
                else:
                    gpu.launch("empty", grid, (), self.stream)
                end.record(self.stream)
                gpu.synchronize(self.stream)
                found.append(gpu.elapsed_us(begin, end))
        return statistics.median(readings["work"]) - statistics.median(readings["empty"]) + 1.0

    # --- one call ------------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        arguments = (u64(self.flush), i32(_FLUSH_BYTES // 16), u64(self.sink))
        self.gpu.launch("read_all", _GRID, arguments, self.stream)

    def cycle(self, side: Side, *, kind: int = CALL, hold_us: float = 0.0, probe: bool = False) -> list[float]:
        """One call: prepare, hold, time, capture and check; see `COLUMNS`."""
        cell, gpu, stream, bell = side.cell, self.gpu, self.stream, side.bell
        words, elements = bell.words, side.elements
        size = elements * 4
        placement, seed = random.randrange(side.sets.count), random.getrandbits(32)
        inputs, outputs = side.addresses(placement)
        pinged, stopped = cell.protocol in PINGED, cell.protocol == "b"
        filled_address = inputs if kind == CALL else self.captured  # a call of nothing must not show new inputs
        begin = now()
        if stopped:
            stop_processes(side.pid)
        if cell.reset_persisting:
            gpu.reset_persisting()
        target = self.staging if pinged else filled_address
        gpu.launch("fill", _GRID, (u64(target), i32(elements), u32(seed)), stream)
        gpu.launch("poison", _GRID, (u64(outputs), i32(elements)), stream)
        if cell.protocol in {"c", "cf"}:
            gpu.copy(self.host_in, self.staging, size, stream)
        self._read_all()
        gpu.synchronize(stream)
        prepared = answered = filled = now()
        if pinged:
            words[SEQUENCE] = sequence = bell.request(PING)
            bell.wait_done(sequence)
            answered = now()
            self._fill(cell.protocol, filled_address, size)
            gpu.synchronize(stream)
            filled = now()
        probe_us = self._hold(hold_us, probe=probe)
        looked = hold_us > 0 and kind == CALL
        if looked:  # honest code has written nothing yet
            gpu.copy_column(self.look, outputs, size // _LOOKS, _LOOKS, stream)
            gpu.synchronize(stream)
        sequence = bell.request(kind, placement)
        if stopped:
            words[SEQUENCE] = sequence
            t0 = now()
            os.killpg(side.pid, signal.SIGCONT)
        else:
            t0 = now()
            words[SEQUENCE] = sequence
        bell.wait_done(sequence)
        t1 = now()
        self._capture(cell.gathered_by, outputs, elements)
        submitted = now()
        gpu.synchronize(stream)
        gathered = now()
        runner_us = words[RUNNER_NS] / 1e3
        if kind == CALL:
            if cell.gathered_by == "host":
                gpu.copy(self.captured, self.host_out, size, stream)
            self._check(side, inputs, seed)
        return [
            hold_us, probe_us, (prepared - begin) / 1e3, (answered - prepared) / 1e3, (filled - answered) / 1e3,
            (t1 - t0) / 1e3, (submitted - t0) / 1e3, (gathered - t0) / 1e3, runner_us, (now() - begin) / 1e3,
            sum(word != _POISON for word in self.look_words) if looked and not self.dry else -1.0,
        ]  # fmt: skip

    def _fill(self, protocol: str, target: int, size: int) -> None:
        """Copy the prepared inputs to where the runner reads them, after the ping."""
        gpu, stream = self.gpu, self.stream
        if protocol in {"c", "cf"}:
            gpu.copy(target, self.host_in, size, stream)
        elif protocol == "cd":
            gpu.copy(target, self.staging, size, stream)
        else:
            gpu.copy_by_engine(target, self.staging, size, stream)
        if protocol == "cf":
            gpu.copy(self.host_flush, self.flush, _FLUSH_BYTES // 2, stream)

    def _capture(self, way: str, outputs: int, elements: int) -> None:
        """Copy outputs to where the runner cannot reach them."""
        if way == "kernel":
            arguments = (u64(self.captured), u64(outputs), i32(elements))
            self.gpu.launch("copy_words", _GRID, arguments, self.stream)
        elif way == "host":
            self.gpu.copy(self.host_out, outputs, 4 * elements, self.stream)
        elif way == "engine":
            self.gpu.copy_by_engine(self.captured, outputs, 4 * elements, self.stream)
        else:
            self.gpu.copy(self.captured, outputs, 4 * elements, self.stream)

    def _hold(self, hold_us: float, *, probe: bool) -> float:
        """Wait, with a probe kernel after a fifth of the time where asked; returns how long the probe took, or -1."""
        end = now() + int(hold_us * 1e3)
        probe_us = -1.0
        if probe:
            while now() < end - int(hold_us * 800):
                pass
            probe_us = self.probe()
        while now() < end:
            pass
        return probe_us

    def probe(self) -> float:
        """Microseconds that a kernel of about 5 us takes, launch and synchronisation included."""
        begin = now()
        self.gpu.launch_thread("known", (i64(_PROBE_CYCLES),), self.stream)
        self.gpu.synchronize(self.stream)
        return (now() - begin) / 1e3

    def _check(self, side: Side, inputs: int, seed: int) -> None:
        """Count wrong outputs and changed inputs on the device; read at the end of the cell."""
        if self.row >= _MOST_ROWS:
            return
        n, at = i32(side.elements), self.counts + 8 * self.row
        arguments = (u64(self.captured), n, i32(side.rounds), u32(seed), u64(at))
        self.gpu.launch("check", _GRID, arguments, self.stream)
        self.gpu.launch("check_inputs", _GRID, (u64(inputs), n, u32(seed), u64(at + 4)), self.stream)
        self.row += 1

    def batch(self, side: Side) -> list[float]:
        """Version 1: all sets are visible at once, one answer, outputs gathered by a kernel before t1."""
        gpu, stream, bell, elements = self.gpu, self.stream, side.bell, side.elements
        count = side.sets.count
        seeds = [random.getrandbits(32) for _ in range(count)]
        begin = now()
        for placement in range(count):
            inputs, outputs = side.addresses(placement)
            gpu.launch("fill", _GRID, (u64(inputs), i32(elements), u32(seeds[placement])), stream)
            gpu.launch("poison", _GRID, (u64(outputs), i32(elements)), stream)
        self._read_all()
        gpu.synchronize(stream)
        prepared = now()
        sequence = bell.request(BATCH, 0, count)
        t0 = now()
        bell.words[SEQUENCE] = sequence
        bell.wait_done(sequence)
        t1 = now()
        gpu.launch("copy_words", (1,), (u64(self.captured), u64(side.sets.outputs), i32(256)), stream)
        submitted = now()
        gpu.synchronize(stream)
        gathered = now()
        runner_us = bell.words[RUNNER_NS] / 1e3 / count
        for placement, seed in enumerate(seeds):
            inputs, outputs = side.addresses(placement)
            gpu.launch("copy_words", _GRID, (u64(self.captured), u64(outputs), i32(elements)), stream)
            self._check(side, inputs, seed)
        times = [(at - t0) / 1e3 / count for at in (t1, submitted, gathered)]
        return [0.0, -1.0, (prepared - begin) / 1e3, 0.0, 0.0, *times, runner_us, (now() - begin) / 1e3, -1.0]


def stop_processes(group: int) -> None:
    """Stop a runner with its helpers; returns when each of its threads is in state T.

    Raises:
        NoAnswerError: a thread was still running after a second.
    """
    os.killpg(group, signal.SIGSTOP)
    deadline = time.monotonic() + 1.0
    tasks = f"/proc/{group}/task"
    for thread in os.listdir(tasks):  # noqa: PTH208 - twice as fast
        while True:
            with open(f"{tasks}/{thread}/stat", "rb") as file:  # noqa: PTH123
                if file.read().rsplit(b")", 1)[1].split(None, 1)[0] == b"T":
                    break
            if time.monotonic() > deadline:
                raise NoAnswerError(f"thread {thread} did not stop within 1 s")
