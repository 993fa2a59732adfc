"""Repetition of a trusted call with device events as its clock, and a stand-in for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.runner import cuda_calls
from harness.runner.cuda_calls import EventTimedCalls

HOLD_NS = 2_000_000


class Device:
    """A stand-in for the trusted launcher that counts the holds of the queue, and stores the order of its work."""

    def __init__(self) -> None:
        self.held_calls = 0
        self.displace = self
        self.steps: list[str] = []

    def run(self) -> None:
        """Store a step in place of the eviction of the cache."""
        self.steps.append("displace")

    def reset_persisting_lines(self) -> None:
        """Do nothing: no line of the cache persists."""

    def enqueue_held(self, enqueue: Callable[[], None], limit_ns: int) -> None:
        assert limit_ns == HOLD_NS
        self.held_calls += 1
        self.steps.append("hold")
        enqueue()


class Event:
    """A stand-in for a CUDA event."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self) -> None:
        """Do nothing in place of the event's record."""

    def elapsed_time(self, _: Event) -> float:
        return 0.001


class Clock:
    """A stand-in for the module `time`."""

    now_ns = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(cuda_calls, "time", fake_clock)
    monkeypatch.setattr(cuda_calls, "_HOLD_NS", HOLD_NS)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return fake_clock


def slow(clock: Clock, times: set[int]) -> tuple[list[int], Callable[[int], None]]:
    """Return a call that exceeds the hold at each of its `times`-th executions."""
    called_slots: list[int] = []

    def compute(slot: int) -> None:
        called_slots.append(slot)
        clock.now_ns += 2 * HOLD_NS if len(called_slots) in times else HOLD_NS // 2

    return called_slots, compute


def test_a_call_that_exceeds_the_hold_is_repeated(clock: Clock) -> None:
    device = Device()
    called_slots, compute = slow(clock, {2})
    calls = EventTimedCalls(device, (compute, lambda *_: None))  # type: ignore[arg-type]
    for placement in range(3):
        calls.run(placement)
    assert called_slots[:4] == [0, 1, 1, 2]
    assert device.held_calls == len(called_slots)


def test_code_that_always_exceeds_the_hold_is_called_without_it(clock: Clock) -> None:
    device = Device()
    called_slots, compute = slow(clock, set(range(100)))
    calls = EventTimedCalls(device, (compute, lambda *_: None))  # type: ignore[arg-type]
    for placement in range(2):
        calls.run(placement)
    assert called_slots == [0, 0, 0, 0, 1]
    assert device.held_calls == 3


def test_l2_is_displaced_before_the_queue_is_held(clock: Clock) -> None:
    device = Device()
    _, compute = slow(clock, set(range(2, 100)))  # the first call is held, the next three exceed the hold
    calls = EventTimedCalls(device, (compute, lambda *_: None))  # type: ignore[arg-type]
    calls.run(0)
    assert device.steps == ["displace", "hold"]
    calls.run(1)
    assert device.steps[2:] == ["displace", "hold"] * 3 + ["displace"], "also before a call without a hold"
