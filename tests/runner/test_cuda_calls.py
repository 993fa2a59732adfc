"""A trusted call by the device's events, with a stand-in for the device: when it is made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.runner import cuda_calls
from harness.runner.cuda_calls import EventTimedCalls

HOLD_NS = 2_000_000


class Device:
    """Stands in for the trusted launcher: counts how often the queue was held."""

    def __init__(self) -> None:
        self.held_calls = 0
        self.displace = self

    def run(self) -> None:
        """Displaces nothing."""

    def reset_persisting_lines(self) -> None:
        """Nothing persists."""

    def enqueue_held(self, enqueue: Callable[[], None], limit_ns: int) -> None:
        assert limit_ns == HOLD_NS
        self.held_calls += 1
        enqueue()


class Event:
    """Stands in for one of CUDA's."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self) -> None:
        """Records nothing."""

    def elapsed_time(self, _: Event) -> float:
        return 0.001


class Clock:
    """Stands in for the module time."""

    now_ns = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cuda_calls, "time", made)
    monkeypatch.setattr(cuda_calls, "_HOLD_NS", HOLD_NS)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def slow(clock: Clock, times: set[int]) -> tuple[list[int], Callable[[int], None]]:
    """A call that outlasts the hold the n-th time it is made, for each n of `times`."""
    made: list[int] = []

    def compute(slot: int) -> None:
        made.append(slot)
        clock.now_ns += 2 * HOLD_NS if len(made) in times else HOLD_NS // 2

    return made, compute


def test_a_call_the_host_was_slow_with_is_made_again_behind_a_hold(clock: Clock) -> None:
    device = Device()
    made, compute = slow(clock, {2})
    calls = EventTimedCalls(device, (compute, lambda *_: None))  # type: ignore[arg-type]
    for placement in range(3):
        calls.run(placement)
    assert made[:4] == [0, 1, 1, 2]
    assert device.held_calls == len(made)


def test_code_that_always_outlasts_the_hold_is_no_longer_held(clock: Clock) -> None:
    device = Device()
    made, compute = slow(clock, set(range(100)))
    calls = EventTimedCalls(device, (compute, lambda *_: None))  # type: ignore[arg-type]
    for placement in range(2):
        calls.run(placement)
    assert made == [0, 0, 0, 0, 1]
    assert device.held_calls == 3
