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
"""Output words that are inspected after a hold, before t0; the value of unwritten words."""
_GRID = (1056,)
_LEAST_CORES = 4
"""Minimum cores for pinned cells, in which judge, candidate and baseline each have a core."""
now_ns = time.perf_counter_ns


@dataclass
class Side:
    """One runner and its sets in the judge's address space."""

    cell: Cell
    pid: int
    bell: Doorbell
    sets: Sets
    elements: int
    rounds: int

    def addresses(self, placement: int) -> tuple[int, int]:
        """Return the addresses of inputs and outputs at a placement."""
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
        """Reset the counts of the previous cell."""
        self.row = 0
        self.gpu.synchronize(self.stream)
        self.gpu.zero(self.counts, 8 * _MOST_ROWS)

    # --- sides ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def side(self, cell: Cell, adversary: str, page: int = 0, rounds: int | None = None) -> Iterator[Side]:
        """Yield memory and a runner, which are always released afterwards.

        Args:
            cell: conditions of the runner.
            adversary: name of the runner's code.
            page: number of the doorbell page.
            rounds: rounds of the kernel's loop; None to calibrate them to the cell's duration.
        """
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
        judge_end, runner_end = socket.socketpair()
        with judge_end, runner_end:
            socket.send_fds(self.service, [json.dumps(asdict(plan)).encode()], [runner_end.fileno()])
            runner_end.close()
            for begin in range(0, len(descriptors), 200):
                socket.send_fds(judge_end, [b"."], descriptors[begin : begin + 200])
            for descriptor in descriptors:
                os.close(descriptor)
            judge_end.settimeout(_START_S)
            answer = judge_end.recv(256)
        if not answer:
            raise NoAnswerError("the runner ended before it was ready")
        return int(json.loads(answer)["pid"])

    def _end(self, pid: int) -> None:
        """Kill a runner with its helpers, and wait until the process no longer exists."""
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
        """Return the rounds of the loop with which a kernel with cold data takes `target_us`; at least 0."""
        if not target_us:
            return 0
        few_rounds, many_rounds = 100, 4100
        few_us, many_us = (self.kernel_us(sets, elements, rounds) for rounds in (few_rounds, many_rounds))
        slope = max((many_us - few_us) / (many_rounds - few_rounds), 1e-4)
        return max(0, int(few_rounds + (target_us - few_us) / slope))

    def kernel_us(self, sets: Sets, elements: int, rounds: int) -> float:
        """Return the workload's duration with cold data by events, without the reading of an empty kernel.

        Args:
            sets: the sets to use in turn.
            elements: elements of a call.
            rounds: rounds of the kernel's loop.
        """
        gpu, readings = self.gpu, {"work": list[float](), "empty": list[float]()}
        grid = (-(-elements // 256),)
        for turn in range(12):
            for name, values in readings.items():
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
                values.append(gpu.elapsed_us(begin, end))
        return statistics.median(readings["work"]) - statistics.median(readings["empty"]) + 1.0

    # --- one call ------------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        arguments = (u64(self.flush), i32(_FLUSH_BYTES // 16), u64(self.sink))
        self.gpu.launch("read_all", _GRID, arguments, self.stream)

    def cycle(self, side: Side, *, kind: int = CALL, hold_us: float = 0.0, probe: bool = False) -> list[float]:
        """Prepare, hold, time, capture and check one call; return the values of `COLUMNS`.

        Args:
            side: the runner.
            kind: `CALL`, or `EMPTY` for a call without elements.
            hold_us: time between the preparation and the request.
            probe: run a probe kernel during the hold.
        """
        cell, gpu, stream, bell = side.cell, self.gpu, self.stream, side.bell
        words, elements = bell.words, side.elements
        size = elements * 4
        placement, seed = random.randrange(side.sets.count), random.getrandbits(32)
        inputs, outputs = side.addresses(placement)
        pinged, stopped = cell.protocol in PINGED, cell.protocol == "b"
        filled_address = inputs if kind == CALL else self.captured  # an empty call must not reveal new inputs
        begin = now_ns()
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
        prepared = ping_answered = filled = now_ns()
        if pinged:
            words[SEQUENCE] = sequence = bell.request(PING)
            bell.wait_done(sequence)
            ping_answered = now_ns()
            self._fill(cell.protocol, filled_address, size)
            gpu.synchronize(stream)
            filled = now_ns()
        probe_us = self._hold(hold_us, probe=probe)
        inspected = hold_us > 0 and kind == CALL
        if inspected:  # honest code has written nothing yet
            gpu.copy_column(self.look, outputs, size // _LOOKS, _LOOKS, stream)
            gpu.synchronize(stream)
        sequence = bell.request(kind, placement)
        if stopped:
            words[SEQUENCE] = sequence
            t0 = now_ns()
            os.killpg(side.pid, signal.SIGCONT)
        else:
            t0 = now_ns()
            words[SEQUENCE] = sequence
        bell.wait_done(sequence)
        t1 = now_ns()
        self._capture(cell.gathered_by, outputs, elements)
        submitted = now_ns()
        gpu.synchronize(stream)
        gathered = now_ns()
        runner_us = words[RUNNER_NS] / 1e3
        if kind == CALL:
            if cell.gathered_by == "host":
                gpu.copy(self.captured, self.host_out, size, stream)
            self._check(side, inputs, seed)
        return [
            hold_us, probe_us, (prepared - begin) / 1e3, (ping_answered - prepared) / 1e3,
            (filled - ping_answered) / 1e3, (t1 - t0) / 1e3, (submitted - t0) / 1e3, (gathered - t0) / 1e3, runner_us,
            (now_ns() - begin) / 1e3,
            sum(word != _POISON for word in self.look_words) if inspected and not self.dry else -1.0,
        ]  # fmt: skip

    def _fill(self, protocol: str, target: int, size: int) -> None:
        """Copy the prepared inputs to the runner's set after the ping."""
        gpu, stream = self.gpu, self.stream
        if protocol in {"c", "cf"}:
            gpu.copy(target, self.host_in, size, stream)
        elif protocol == "cd":
            gpu.copy(target, self.staging, size, stream)
        else:
            gpu.copy_by_engine(target, self.staging, size, stream)
        if protocol == "cf":
            gpu.copy(self.host_flush, self.flush, _FLUSH_BYTES // 2, stream)

    def _capture(self, method: str, outputs: int, elements: int) -> None:
        """Copy outputs to memory that the runner cannot access."""
        if method == "kernel":
            arguments = (u64(self.captured), u64(outputs), i32(elements))
            self.gpu.launch("copy_words", _GRID, arguments, self.stream)
        elif method == "host":
            self.gpu.copy(self.host_out, outputs, 4 * elements, self.stream)
        elif method == "engine":
            self.gpu.copy_by_engine(self.captured, outputs, 4 * elements, self.stream)
        else:
            self.gpu.copy(self.captured, outputs, 4 * elements, self.stream)

    def _hold(self, hold_us: float, *, probe: bool) -> float:
        """Wait, optionally with a probe kernel after a fifth of the time; return the probe's duration, or -1."""
        end = now_ns() + int(hold_us * 1e3)
        probe_us = -1.0
        if probe:
            while now_ns() < end - int(hold_us * 800):
                pass
            probe_us = self.probe()
        while now_ns() < end:
            pass
        return probe_us

    def probe(self) -> float:
        """Return the microseconds of a kernel of about 5 us, including launch and synchronisation."""
        begin = now_ns()
        self.gpu.launch_thread("known", (i64(_PROBE_CYCLES),), self.stream)
        self.gpu.synchronize(self.stream)
        return (now_ns() - begin) / 1e3

    def _check(self, side: Side, inputs: int, seed: int) -> None:
        """Count wrong outputs and changed inputs on the device; the counts are read at the end of the cell."""
        if self.row >= _MOST_ROWS:
            return
        n, at = i32(side.elements), self.counts + 8 * self.row
        arguments = (u64(self.captured), n, i32(side.rounds), u32(seed), u64(at))
        self.gpu.launch("check", _GRID, arguments, self.stream)
        self.gpu.launch("check_inputs", _GRID, (u64(inputs), n, u32(seed), u64(at + 4)), self.stream)
        self.row += 1

    def batch(self, side: Side) -> list[float]:
        """Time a batch of version 1: all sets are visible at once, and a kernel gathers outputs before t1."""
        gpu, stream, bell, elements = self.gpu, self.stream, side.bell, side.elements
        count = side.sets.count
        seeds = [random.getrandbits(32) for _ in range(count)]
        begin = now_ns()
        for placement in range(count):
            inputs, outputs = side.addresses(placement)
            gpu.launch("fill", _GRID, (u64(inputs), i32(elements), u32(seeds[placement])), stream)
            gpu.launch("poison", _GRID, (u64(outputs), i32(elements)), stream)
        self._read_all()
        gpu.synchronize(stream)
        prepared = now_ns()
        sequence = bell.request(BATCH, 0, count)
        t0 = now_ns()
        bell.words[SEQUENCE] = sequence
        bell.wait_done(sequence)
        t1 = now_ns()
        gpu.launch("copy_words", (1,), (u64(self.captured), u64(side.sets.outputs), i32(256)), stream)
        submitted = now_ns()
        gpu.synchronize(stream)
        gathered = now_ns()
        runner_us = bell.words[RUNNER_NS] / 1e3 / count
        for placement, seed in enumerate(seeds):
            inputs, outputs = side.addresses(placement)
            gpu.launch("copy_words", _GRID, (u64(self.captured), u64(outputs), i32(elements)), stream)
            self._check(side, inputs, seed)
        times = [(at - t0) / 1e3 / count for at in (t1, submitted, gathered)]
        return [0.0, -1.0, (prepared - begin) / 1e3, 0.0, 0.0, *times, runner_us, (now_ns() - begin) / 1e3, -1.0]


def stop_processes(group: int) -> None:
    """Stop a runner with its helpers, and return when each of its threads is in state T.

    Raises:
        NoAnswerError: a thread did not stop within a second.
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
