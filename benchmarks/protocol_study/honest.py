"""The code of an honest runner, which the adversaries override."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .device import BLOCK, i32, u64
from .doorbell import Doorbell
from .memory import Sets

_POISON = 0xFFFFFFFF


class Honest:
    """A runner that launches, waits for the device and answers."""

    answers_itself = False
    """True if device code writes the answer to the doorbell page."""
    reports_time = False
    """True if the runner's code writes RUNNER_NS (readings of events)."""
    idle: Callable[[], None] | None = None
    """Called repeatedly without a request."""

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
        """Prepare the attack. The sets are mapped, and each was computed once."""

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
        """Serve a call without elements, which calibrates the overhead."""
        self.gpu.launch("work", (1,), self.nothing[0], self.side_stream)
        self.gpu.synchronize(self.side_stream)

    def batch(self, count: int) -> None:
        """Serve version 1's batch: one call after the other."""
        for placement in range(count):
            self.gpu.launch("work", self.grid, self.arguments[placement], self.stream)
        self.gpu.synchronize(self.stream)

    def stop(self) -> None:
        """End the attack."""
