"""Protocols that each device implements: memory, the clock of a batch, conditions while it is timed.

Everything else (rounds, blocks, correctness, verdicts) is the same for all and lives beside this package. A device
is opened once by a judge, which holds its lock for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from harness.judge.batched_copy import CopyAll
from harness.judge.correctness import Summed
from harness.judge.input_data.layout import Layout
from harness.judge.reference import Value
from harness.judge.runners import Runner
from harness.model.judging import DeviceRecord
from harness.model.problem import Problem
from harness.model.solution import Language
from harness.model.verdict import Trust

T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """One call: durations in nanoseconds by the judge's clock and as claimed, and what was seen before it."""

    ns: int
    claimed_ns: int
    placement: int
    held: bool = False
    """The judge waited at random before it asked for the call. Such a call does not count."""
    written_early: bool = False
    """Something was written to the outputs before the call was asked for."""
    probe_ns: int | None = None
    """Duration of a kernel of the judge between the inputs and the request."""


@dataclass(frozen=True)
class Batch:
    """One batch as the judge's clock saw it, handshake included."""

    ns: int
    claimed_ns: int
    disturbed_ns: int
    """Time in which something outside the sandbox kept the processor (or device) from it."""
    readings: tuple[Reading, ...] = ()
    """The calls that count, where each is timed by itself."""


@dataclass(frozen=True)
class Calibration:
    """Overheads of the clock, measured in a clean runner with calls that do nothing."""

    handshake_ns: float
    """Of a batch, whatever its calls: what is subtracted."""
    dispatch_ns: float
    """Of one call: what a runner needs to make it."""
    batch_ns: int = 6_000_000
    """A batch lasts about so long: the handshake is then a few percent of it."""
    most_calls: int = 32
    """Calls of one batch at most: filling and checking more sets would cost judging time and buy little."""
    around_ns: float = 0.0
    """Of one call: what a clock around each call reads beyond it; taken off."""
    separate_calls: bool = False
    """Each call is asked for and timed by itself, so that no call can do the work of another."""
    work_outlasts_stop: bool = False
    """Device work that a runner's own code queued may run while its process is stopped."""


class Memory(Protocol):
    """The sets of one workload: `capacity` slots, each with the inputs and outputs of one call."""

    layout: Layout
    capacity: int

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """A slot's inputs by name, to be written in place; a Python scalar is a 0-d tensor of 64 bits."""

    def inputs(self, slot: int) -> list[Value]:
        """A slot's inputs as the reference is called with."""

    def outputs(self, runner: Runner, slot: int) -> dict[str, torch.Tensor]:
        """A slot's outputs as a runner left them, by name."""


class Device(Protocol):
    """One device, held by this judge."""

    target: str
    calibration: Calibration
    summed: Summed
    """Comparison of outputs on this device."""
    copy_all: CopyAll | None
    """Copies many pieces of the judge's own memory at once; None where each is copied by itself."""
    memory_on: torch.device
    """Where the judge's own copy of the sets lies."""
    languages: tuple[Language, ...]
    """Languages that this device judges."""

    def clock(self, *, sealed: bool) -> Device:
        """This device with the clock for sealed solutions, or for all others. A device with one clock is its own."""

    def record(self) -> DeviceRecord:
        """The device as it is now, for the entry."""

    def runner(self, *, trusted: bool = False, needs_torch: bool = True) -> Runner:
        """A fresh runner. A trusted one (the reference's) may keep a compiler cache that no candidate can write.

        One that does not need torch may be without it.
        """

    def all_processors(self) -> AbstractContextManager[None]:
        """For work of the judge that is long: every processor. Nothing is timed meanwhile."""

    def timing(self) -> AbstractContextManager[None]:
        """Held while batches are timed: whatever would disturb them waits, or is waited for."""

    def each(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Work of the judge for each slot, on as many processors as it may have. Nothing is timed meanwhile.

        All of it has ended when this returns; the first exception in the slots' order is raised.
        """

    def start_standby(self) -> None:
        """Start the next runner ahead, now that nothing is being timed."""

    def settle(self) -> None:
        """Wait until nothing of ours is starting up any more."""

    def reserve(self, problem: Problem, layouts: Sequence[Layout]) -> bool:
        """Memory for sets of these workloads; true: other memory than before, and old grants are void."""

    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """Connect a runner to the device: words and descriptors for its load message.

        `sealed`: it makes a sealed candidate's calls, and runs no host code of the candidate.
        """

    def loaded(self, runner: Runner, short_kernel_ns: int) -> None:
        """Note what a connected runner read of a short trusted kernel before its solution was loaded; 0: nothing."""

    def place(self, runner: Runner, layout: Layout, slots: int) -> tuple[dict[str, object], tuple[int, ...]]:
        """Memory for a runner's next workload: words and descriptors for its message; the caller closes these.

        Args:
            runner: a connected runner.
            layout: the workload's inputs and outputs.
            slots: how many sets the judge uses at a time.

        Raises:
            NoRoom: the device's memory does not suffice.
        """

    def untried(self, runner: Runner) -> int:
        """Places in memory where a runner will be timed and has made no call on this workload."""

    def conclude(self, runner: Runner) -> None:
        """Judge, after the last call on a workload, what a runner did between its calls.

        Raises:
            RunnerFailed: it worked when it was not asked to.
        """

    def aside(self, layouts: Sequence[Layout]) -> AbstractContextManager[None]:
        """For other work between two batches: its runners get memory of its own, and are gone at the end."""

    def memory(self, layout: Layout) -> Memory:
        """The reserved memory, laid out for one workload."""

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Poison the outputs, make everything cold, hand over, time, stop. The runner is stopped before and after.

        Raises:
            RunnerFailed: the candidate failed in a way that is its verdict.
        """

    def forget(self, runner: Runner) -> None:
        """End a runner and give its memory back."""

    def recalibrate(self) -> None:
        """Measure the way to a runner again."""

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """Standard deviation of ln(latency) between processes that run the same code.

        Args:
            latency_ns: of a call.
            bound_ns: what the call takes at the peak of the device (`sol_us`); 0.0 where it is not known.
        """

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Trust in the clock for calls this long, by the judge's reading and by the runner's own."""

    def close(self) -> None:
        """Give everything back."""
