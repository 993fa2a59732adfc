"""The runner's code by name: an honest runner, and adversaries that aim at a lower latency or a slower baseline."""

from __future__ import annotations

import time

from .baseline_attacks import BaseCallback, BaseCopy, BaseCpu, BaseDelayed, BaseKernel, BaseWait
from .device import i32, i64, u64
from .doorbell import PAGE_BYTES, RUNNER_NS
from .honest import Honest

_NEVER_NS = 20_000_000_000
"""Time limit of waiting kernels, so that no kernel outlives its runner for long."""
_POISON = 0xFFFFFFFF


class Sealed(Honest):
    """The trusted launcher: displaces L2, then event, kernel, event behind that displacement."""

    reports_time = True
    kernel = "work"

    def start(self) -> None:
        self.flush = self.gpu.allocate(256 << 20)
        self.sink = self.gpu.allocate(16)
        self.events = self.gpu.event(), self.gpu.event()

    def call(self, placement: int) -> None:
        gpu, (begin, end) = self.gpu, self.events
        gpu.launch("read_all", (1056,), (u64(self.flush), i32(16 << 20), u64(self.sink)), self.stream)
        begin.record(self.stream)
        gpu.launch(self.kernel, self.grid, self.arguments[placement], self.stream)
        end.record(self.stream)
        gpu.synchronize(self.stream)
        self.bell.words[RUNNER_NS] = int(gpu.elapsed_us(begin, end) * 1e3)

    def empty(self) -> None:
        gpu, (begin, end) = self.gpu, self.events
        gpu.launch("read_all", (1056,), (u64(self.flush), i32(16 << 20), u64(self.sink)), self.stream)
        begin.record(self.stream)
        gpu.launch("work", (1,), self.nothing[0], self.stream)
        end.record(self.stream)
        gpu.synchronize(self.stream)
        self.bell.words[RUNNER_NS] = int(gpu.elapsed_us(begin, end) * 1e3)


class SealedLast(Sealed):
    """A sealed kernel whose loads and stores have the hint to be evicted last."""

    kernel = "work_last"


class Resident(Honest):
    """A kernel that never ends computes each set as soon as its words change, before the doorbell rings."""

    watches_doorbell = False

    def start(self) -> None:
        self.stop_flag, self.stop_words = self.gpu.pinned(64)
        self.answers, self.answer_words = self.gpu.pinned(8 * 256)
        self.handled = [0] * self.sets.count
        self.state = self.gpu.allocate(8192)
        self.busy = self.gpu.stream()
        page = self.gpu.register(self.bell.address, PAGE_BYTES) if self.watches_doorbell else 0
        sets = self.sets
        arguments = (
            u64(sets.inputs), u64(sets.outputs), i64(sets.stride), i32(sets.count), i32(self.elements),
            i32(self.rounds), u64(self.stop_flag), u64(self.answers), u64(page), u64(self.state),
        )  # fmt: skip
        self.gpu.launch("resident", (264,), arguments, self.busy)

    def call(self, placement: int) -> None:
        deadline = time.perf_counter_ns() + 20_000_000
        answers = self.answer_words
        while answers[placement] == self.handled[placement]:
            if time.perf_counter_ns() > deadline:  # the change was missed
                self.work(placement)
                break
        self.handled[placement] = answers[placement]

    def stop(self) -> None:
        self.stop_words[0] = 1


class Mapped(Resident):
    """The doorbell page is mapped for the device: a kernel that never ends reads requests and answers them there."""

    watches_doorbell = True
    answers_itself = True

    def call(self, placement: int) -> None:
        del placement


class WaitValue(Honest):
    """The front end of one stream per set holds the kernel until the last input word is written."""

    def start(self) -> None:
        self.streams = [self.gpu.stream() for _ in range(self.sets.count)]
        last = self.elements * 4 - 4
        self.watched = [self.sets.inputs + p * self.sets.stride + last for p in range(self.sets.count)]
        for placement in range(self.sets.count):
            self._arm(placement)

    def _arm(self, placement: int) -> None:
        stream, address = self.streams[placement], self.watched[placement]
        self.gpu.write_word(stream, address, _POISON)
        self.gpu.wait_not_poison(stream, address)
        self.gpu.launch("work", self.grid, self.arguments[placement], stream)

    def call(self, placement: int) -> None:
        deadline = time.perf_counter_ns() + 20_000_000
        stream = self.streams[placement]
        while not self.gpu.done(stream):
            if time.perf_counter_ns() > deadline:  # the sentinel came after the judge's fill
                self.work(placement)
                self.gpu.write_word(self.side_stream, self.watched[placement], 0)
                self.gpu.synchronize(stream)
                break

    def after(self, placement: int) -> None:
        self._arm(placement)

    def stop(self) -> None:
        for address in self.watched:
            self.gpu.write_word(self.side_stream, address, 0)


class PollCopy(Honest):
    """The host thread repeatedly copies one word of each set's inputs, and computes a set that has changed."""

    def start(self) -> None:
        self.host, words = self.gpu.pinned(4 * 256)
        self.words = words.cast("B").cast("I")
        self.copies = self.gpu.stream()
        self.computed = -1
        self._look()
        self.previous_words = list(self.words[: self.sets.count])
        self.idle = self._idle

    def _look(self) -> None:
        sets = self.sets
        source = sets.inputs + self.elements * 4 - 4
        self.gpu.copy_column(self.host, source, sets.stride, sets.count, self.copies)
        self.gpu.synchronize(self.copies)

    def _idle(self) -> None:
        self._look()
        current = list(self.words[: self.sets.count])
        if current != self.previous_words:
            placement = next(
                p for p, (old, new) in enumerate(zip(self.previous_words, current, strict=True)) if old != new
            )
            self.previous_words = current
            self.work(placement)
            self.computed = placement

    def call(self, placement: int) -> None:
        if self.computed != placement:
            self.work(placement)
            self._look()
            self.previous_words = list(self.words[: self.sets.count])
        self.computed = -1


class Background(Honest):
    """A kernel of one thread never ends, so that the runner's context stays on the device."""

    def start(self) -> None:
        self.flag, self.flag_words = self.gpu.pinned(64)
        self.busy = self.gpu.stream()
        self.gpu.launch_thread("spin_until", (u64(self.flag), i64(_NEVER_NS)), self.busy)

    def stop(self) -> None:
        self.flag_words[0] = 1


class GraphSpin(Honest):
    """A graph is launched ahead: its first kernel waits for a flag, which the host sets when the doorbell rings."""

    def start(self) -> None:
        self.flag, self.flag_words = self.gpu.pinned(64)
        self.published = self.gpu.allocate(64)
        sets, gpu = self.sets, self.gpu

        def enqueue() -> None:
            gpu.launch_thread("gate", (u64(self.flag), u64(self.published), i64(_NEVER_NS)), self.stream)
            arguments = (
                u64(self.published), u64(sets.inputs), u64(sets.outputs), i64(sets.stride), i32(self.elements),
                i32(self.rounds),
            )  # fmt: skip
            gpu.launch("work_indirect", self.grid, arguments, self.stream)

        self.prepared = gpu.graph(self.stream, enqueue)
        self.prepared.launch(self.stream)

    def call(self, placement: int) -> None:
        self.flag_words[1] = placement
        self.flag_words[0] += 1
        self.gpu.synchronize(self.stream)

    def after(self, placement: int) -> None:
        del placement
        self.prepared.launch(self.stream)

    def stop(self) -> None:
        self.flag_words[0] += 1


class Early(Honest):
    """Answers `early_us` before the kernel is expected to end, without waiting for it."""

    early_us = 0.0

    def start(self) -> None:
        durations = []
        for turn in range(20):
            begin = time.perf_counter_ns()
            self.work(turn % self.sets.count)
            durations.append(time.perf_counter_ns() - begin)
        self.wait_ns = max(0.0, sorted(durations)[10] - self.early_us * 1e3)

    def call(self, placement: int) -> None:
        end = time.perf_counter_ns() + self.wait_ns
        self.gpu.launch("work", self.grid, self.arguments[placement], self.stream)
        while time.perf_counter_ns() < end:
            pass

    def after(self, placement: int) -> None:
        del placement
        self.gpu.synchronize(self.stream)


def _early(microseconds: float) -> type[Early]:
    return type("Early", (Early,), {"early_us": microseconds})


class SlowCalibration(Honest):
    """Answers calls of no elements 50 us late, so that more is subtracted."""

    def empty(self) -> None:
        super().empty()
        end = time.perf_counter_ns() + 50_000
        while time.perf_counter_ns() < end:
            pass


class BatchOnce(Honest):
    """Computes a whole batch in one launch."""

    def batch(self, count: int) -> None:
        sets = self.sets
        arguments = (u64(sets.inputs), u64(sets.outputs), i64(sets.stride), i32(self.elements), i32(self.rounds))
        self.gpu.launch("work_all", (*self.grid, count), arguments, self.stream)
        self.gpu.synchronize(self.stream)


class Overlap(Honest):
    """Launches neighbouring calls of a batch on different streams."""

    def start(self) -> None:
        self.streams = [self.gpu.stream() for _ in range(8)]

    def batch(self, count: int) -> None:
        for placement in range(count):
            self.gpu.launch("work", self.grid, self.arguments[placement], self.streams[placement % 8])
        for stream in self.streams:
            self.gpu.synchronize(stream)


class L2Last(Honest):
    """After each answer, and in the kernel, marks the sets' lines as the last ones to evict."""

    def start(self) -> None:
        self.sink = self.gpu.allocate(16)

    def call(self, placement: int) -> None:
        self.gpu.launch("work_last", self.grid, self.arguments[placement], self.stream)
        self.gpu.synchronize(self.stream)

    def after(self, placement: int) -> None:
        for base in (self.sets.inputs, self.sets.outputs):
            address = u64(base + placement * self.sets.stride)
            self.gpu.launch("touch_last", (528,), (address, i32(self.elements), u64(self.sink)), self.side_stream)


class L2Persist(Honest):
    """Sets aside L2 for persisting lines and covers the sets with an access window."""

    def start(self) -> None:
        self.gpu.persist(self.stream, self.sets.inputs, min(self.sets.stride * self.sets.count, 32 << 20))


ADVERSARIES: dict[str, type[Honest]] = {
    "honest": Honest,
    "beside": Honest,
    "sealed": Sealed,
    "sealed_last": SealedLast,
    "resident": Resident,
    "waitvalue": WaitValue,
    "poll_copy": PollCopy,
    "background": Background,
    "mapped": Mapped,
    "graph_spin": GraphSpin,
    "early_2": _early(2),
    "early_5": _early(5),
    "early_10": _early(10),
    "early_20": _early(20),
    "early_all": _early(1e9),
    "slow_calibration": SlowCalibration,
    "batch_once": BatchOnce,
    "overlap": Overlap,
    "l2_last": L2Last,
    "l2_persist": L2Persist,
    "base_kernel": BaseKernel,
    "base_copy": BaseCopy,
    "base_delayed": BaseDelayed,
    "base_callback": BaseCallback,
    "base_wait": BaseWait,
    "base_cpu": BaseCpu,
}
