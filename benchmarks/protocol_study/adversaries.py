"""The code of the runner: an honest one, and those that want a lower recorded latency or a slower baseline."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from .device import BLOCK, i32, i64, u64
from .doorbell import PAGE_BYTES, RUNNER_NS, Doorbell
from .memory import Sets

_NEVER_NS = 20_000_000_000
"""Limit of kernels that wait: a runner that is gone must not leave one behind."""
_POISON = 0xFFFFFFFF


class Honest:
    """Launch, wait for the device, answer."""

    answers_itself = False
    """Device code writes the answer into the doorbell page."""
    reports_time = False
    """The runner writes RUNNER_NS itself (readings of events)."""
    idle: Callable[[], None] | None = None
    """Called while no request is there."""

    def __init__(self, gpu: Any, sets: Sets, bell: Doorbell, elements: int, rounds: int) -> None:  # noqa: ANN401
        self.gpu, self.sets, self.bell, self.elements, self.rounds = gpu, sets, bell, elements, rounds
        self.stream, self.side_stream = gpu.stream(), gpu.stream()
        self.grid = (-(-elements // BLOCK),)
        stride = sets.stride
        self.arguments = [
            (u64(sets.inputs + p * stride), u64(sets.outputs + p * stride), i32(elements), i32(rounds))
            for p in range(sets.count)
        ]
        self.nothing = [(first, second, i32(0), i32(0)) for first, second, _, _ in self.arguments]

    def start(self) -> None:
        """Prepare the attack; the sets are mapped and each was computed once."""

    def work(self, placement: int) -> None:
        """Compute one set and wait."""
        self.gpu.launch("work", self.grid, self.arguments[placement], self.stream)
        self.gpu.synchronize(self.stream)

    def call(self, placement: int) -> None:
        """Serve a timed call."""
        self.work(placement)

    def after(self, placement: int) -> None:
        """Act after the answer."""

    def ping(self) -> None:
        """Serve the untimed ping: an empty kernel."""
        self.gpu.launch("empty", (1,), (), self.side_stream)
        self.gpu.synchronize(self.side_stream)

    def empty(self) -> None:
        """Serve a call of no elements, with which overhead is calibrated."""
        self.gpu.launch("work", (1,), self.nothing[0], self.side_stream)
        self.gpu.synchronize(self.side_stream)

    def batch(self, count: int) -> None:
        """Serve version 1's batch: one call after the other."""
        for placement in range(count):
            self.gpu.launch("work", self.grid, self.arguments[placement], self.stream)
        self.gpu.synchronize(self.stream)

    def stop(self) -> None:
        """End the attack."""


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
    """A sealed kernel whose loads and stores ask to be evicted last."""

    kernel = "work_last"


class Resident(Honest):
    """A kernel that never ends computes each set as soon as its words change, before the doorbell rings."""

    watches_doorbell = False

    def start(self) -> None:
        self.stop_flag, self.stop_words = self.gpu.pinned(64)
        self.answers, self.answer_words = self.gpu.pinned(8 * 256)
        self.answered = [0] * self.sets.count
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
        while answers[placement] == self.answered[placement]:
            if time.perf_counter_ns() > deadline:  # the change was missed
                self.work(placement)
                break
        self.answered[placement] = answers[placement]

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
    """The host thread copies one word of each set's inputs again and again, and computes a set that has changed."""

    def start(self) -> None:
        self.host, words = self.gpu.pinned(4 * 256)
        self.words = words.cast("B").cast("I")
        self.copies = self.gpu.stream()
        self.computed = -1
        self._look()
        self.known = list(self.words[: self.sets.count])
        self.idle = self._idle

    def _look(self) -> None:
        sets = self.sets
        source = sets.inputs + self.elements * 4 - 4
        self.gpu.copy_column(self.host, source, sets.stride, sets.count, self.copies)
        self.gpu.synchronize(self.copies)

    def _idle(self) -> None:
        self._look()
        current = list(self.words[: self.sets.count])
        if current != self.known:
            placement = next(p for p, (old, new) in enumerate(zip(self.known, current, strict=True)) if old != new)
            self.known = current
            self.work(placement)
            self.computed = placement

    def call(self, placement: int) -> None:
        if self.computed != placement:
            self.work(placement)
            self._look()
            self.known = list(self.words[: self.sets.count])
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
        self.seen = self.gpu.allocate(64)
        sets, gpu = self.sets, self.gpu

        def enqueue() -> None:
            gpu.launch_thread("gate", (u64(self.flag), u64(self.seen), i64(_NEVER_NS)), self.stream)
            arguments = (
                u64(self.seen), u64(sets.inputs), u64(sets.outputs), i64(sets.stride), i32(self.elements),
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


class BaselineAttack(Honest):
    """Leaves work behind that runs in the baseline's turn."""

    delay_s = 0.0006
    """From the answer to about when the baseline's clock starts."""

    def start(self) -> None:
        self.left = self.gpu.stream()
        self.big = self.gpu.allocate(2 << 30)
        self.host, _ = self.gpu.pinned(32 << 20)
        self.flag, self.flag_words = self.gpu.pinned(64)
        self.prepare()

    def prepare(self) -> None:
        """Start helpers."""

    def spin(self) -> None:
        """Leave a kernel of 6 ms on every multiprocessor."""
        self.gpu.launch("spin_ns", (1056,), (i64(6_000_000),), self.left)


class BaseKernel(BaselineAttack):
    """A long kernel."""

    def after(self, placement: int) -> None:
        del placement
        self.spin()


class BaseCopy(BaselineAttack):
    """Copies from the host by copy engine, which no probe on the multiprocessors sees."""

    def after(self, placement: int) -> None:
        del placement
        for _ in range(8):
            self.gpu.copy(self.big, self.host, 32 << 20, self.left)


class BaseDelayed(BaselineAttack):
    """A copy from the host delays a kernel past the probe for idleness."""

    def after(self, placement: int) -> None:
        del placement
        self.gpu.copy(self.big, self.host, 32 << 20, self.left)
        self.spin()


class BaseCallback(BaselineAttack):
    """A host function delays the kernel."""

    def after(self, placement: int) -> None:
        del placement
        self.gpu.call_host(self.left, lambda _: time.sleep(self.delay_s))
        self.spin()


class BaseWait(BaselineAttack):
    """The stream waits for a word that a helper process writes into the doorbell page later."""

    def prepare(self) -> None:
        self.page = self.gpu.register(self.bell.address, PAGE_BYTES)
        words = self.bell.words
        if os.fork() == 0:
            seen, parent = words[64], os.getppid()
            while os.getppid() == parent:
                if words[64] != seen:
                    seen = words[64]
                    time.sleep(self.delay_s)
                    words[65] = seen
            os._exit(0)

    def after(self, placement: int) -> None:
        del placement
        ticket = int(self.bell.words[64]) + 1
        self.gpu.wait_equal(self.left, self.page + 65 * 8, ticket & 0xFFFFFFFF)
        self.spin()
        self.bell.words[64] = ticket


class BaseCpu(BaselineAttack):
    """Helper processes keep every core that they may use busy."""

    def prepare(self) -> None:
        code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n  for _ in range(10**5): pass"
        self.helpers = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(32)]


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
