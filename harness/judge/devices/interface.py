"""Protocols that each device implements: memory, the clock of a batch, and conditions during a timing.

Everything else (rounds, blocks, correctness, verdicts) is the same for all devices and is outside of this package. A
judge opens a device once and holds its lock until the judge ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from harness.judge.correctness import Summed
from harness.judge.input_data.copies import BatchedCopy
from harness.judge.input_data.layout import Layout
from harness.judge.reference import Value
from harness.judge.runners import Runner
from harness.model.judging import DeviceRecord
from harness.model.languages import Language
from harness.model.problem import Problem
from harness.model.verdict import Trust

T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """Measurements of one call."""

    ns: int
    """Nanoseconds by the judge's clock."""
    claimed_ns: int
    """Nanoseconds that the runner reports."""
    placement: int
    """Number of the placement."""
    was_held: bool = False
    """The judge waited for a random time before it requested the call. Such a call does not count."""
    written_early: bool = False
    """The outputs were written before the call was requested."""
    probe_ns: int | None = None
    """Nanoseconds of a kernel that the judge ran between writing the inputs and the request."""


@dataclass(frozen=True)
class Batch:
    """Measurements of one batch."""

    ns: int
    """Nanoseconds by the judge's clock, handshake included."""
    claimed_ns: int
    """Nanoseconds that the runner reports."""
    disturbed_ns: int
    """Nanoseconds in which the processor (or device) was used by something outside the sandbox."""
    readings: tuple[Reading, ...] = ()
    """The calls that count, on a device that times each call separately."""


@dataclass(frozen=True)
class Calibration:
    """Overheads of the clock, measured in a clean runner with empty calls."""

    handshake_ns: float
    """Overhead of a batch, independent of its calls; it is subtracted."""
    dispatch_ns: float
    """Time of one empty call in a runner."""
    batch_ns: int = 6_000_000
    """Target duration of a batch, of which the handshake is a few percent."""
    most_calls: int = 32
    """Largest number of calls in a batch. More would cost time for filling and checking and add little precision."""
    call_overhead_ns: float = 0.0
    """Overhead of the clock per call, subtracted from every reading."""
    separate_calls: bool = False
    """Each call is requested and timed separately, so that no call can do the work of another."""
    work_outlasts_stop: bool = False
    """Device work that a runner's code enqueued may run while its process is stopped."""


class Memory(Protocol):
    """Memory of one workload: `capacity` slots, each with the inputs and outputs of one call."""

    layout: Layout
    capacity: int

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """Return a slot's inputs by name, to be written in place; a Python scalar is a 0-d tensor of 64 bits."""

    def inputs(self, slot: int) -> list[Value]:
        """Return a slot's inputs in the order of the reference's arguments."""

    def outputs(self, runner: Runner, slot: int) -> dict[str, torch.Tensor]:
        """Return the outputs, by name, that a runner wrote.

        Args:
            runner: the runner of the last batch.
            slot: number of the slot.
        """


class Device(Protocol):
    """A device whose lock this judge holds. Methods with a body are the same for devices that do not replace them."""

    target: str
    calibration: Calibration
    summed: Summed
    """Compares outputs on this device."""
    copy_all: BatchedCopy | None = None
    """Copies many pieces of the judge's own memory at once; None on a device that copies each separately."""
    memory_on: torch.device
    """Device of the judge's own copy of the inputs."""
    languages: tuple[Language, ...]
    """Languages of the solutions that this device can run."""

    def clock(self, *, sealed: bool) -> Device:
        """Return this device with the clock for sealed solutions or for all others; by default one clock for both."""
        del sealed
        return self

    def record(self) -> DeviceRecord:
        """Return the current state of the device for the entry."""

    def runner(self, *, trusted: bool = False, needs_torch: bool = True) -> Runner:
        """Return a new runner.

        Args:
            trusted: the runner executes only trusted code (the reference). It may have a compiler cache, which no
                candidate can write.
            needs_torch: false permits a runner that has not imported torch.
        """

    def all_processors(self) -> AbstractContextManager[None]:
        """Use every processor for long work of the judge inside this context, in which nothing is timed.

        By default the work is on the device, and the context has no effect.
        """
        return nullcontext()

    def timing(self) -> AbstractContextManager[None]:
        """Hold the host's timing lock inside this context: disturbing work waits, and earlier work is waited for."""

    def map_slots(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Do work of the judge for each slot, on several processors if possible, while nothing is timed.

        Args:
            work: called with the number of a slot.
            slots: numbers of the slots.

        Returns:
            The results in the order of the slots. All calls have ended; the first exception in this order is raised.
        """
        return [work(slot) for slot in slots]

    def start_standby(self) -> None:
        """Start the next runner in advance; call this while nothing is timed."""

    def settle(self) -> None:
        """Wait until no runner of this judge is starting or ending."""

    def after_check(self) -> None:
        """Prepare for the next check, after the answer to one between two batches of an evaluation."""

    def reserve(self, problem: Problem, layouts: Sequence[Layout]) -> bool:
        """Allocate memory for at least one set of inputs and outputs of each workload.

        By default memory is allocated for each workload by itself.

        Args:
            problem: the problem.
            layouts: layouts of the workloads.

        Returns:
            True if the memory was replaced, so that earlier grants are invalid.
        """
        del problem, layouts
        return False

    def grant(self, runner: Runner, *, sealed: bool = False) -> tuple[dict[str, object], tuple[int, ...]]:
        """Connect a runner to the device.

        Args:
            runner: a new runner.
            sealed: the runner makes the calls of a sealed candidate and runs no host code of it.

        Returns:
            Fields and file descriptors of its load message.
        """

    def loaded(self, runner: Runner, short_kernel_ns: int) -> None:
        """Store the reading of a short trusted kernel in a connected runner before its solution was loaded.

        Args:
            runner: a connected runner.
            short_kernel_ns: nanoseconds between events; 0 without events.
        """
        del runner, short_kernel_ns  # by default, the judge's own clock is the same for all runners

    def place(self, runner: Runner, layout: Layout, slots: int) -> tuple[dict[str, object], tuple[int, ...]]:
        """Allocate memory for a runner's next workload; by default it was granted with the runner.

        Args:
            runner: a connected runner.
            layout: the workload's inputs and outputs.
            slots: number of sets that the judge uses at a time.

        Returns:
            Fields and file descriptors of its message; the caller closes the descriptors.

        Raises:
            NoRoom: the device does not have enough memory.
        """
        del runner, layout, slots
        return {}, ()

    def untried(self, runner: Runner) -> int:
        """Return the number of placements at which a runner has made no call on this workload yet."""
        del runner  # by default, all runners use the same slots
        return 0

    def conclude(self, runner: Runner) -> None:
        """Check, after the last call on a workload, that a runner did no work between its calls.

        Raises:
            RunnerFailed: it worked without a request.
        """
        del runner  # by default, a runner is stopped between its batches

    def temporary_memory(self, layouts: Sequence[Layout]) -> AbstractContextManager[None]:
        """Give separate memory to the runners inside this context, which all end before it does.

        By default memory is allocated for each workload and each runner.
        """
        del layouts
        return nullcontext()

    def memory(self, layout: Layout, workloads: int = 1) -> Memory:
        """Return the reserved memory with the layout of one workload.

        Args:
            layout: the workload's inputs and outputs.
            workloads: number of the problem's workloads that are timed. The memory may have fewer slots if there are
                several, because the mean of all of them counts.
        """

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        """Poison the outputs, flush the caches, continue the runner, time its calls, and stop it.

        The runner is stopped before and after.

        Args:
            runner: a runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of the batch, or of each call where calls are timed separately.

        Raises:
            RunnerFailed: the candidate failed in a way that determines its verdict.
        """

    def forget(self, runner: Runner) -> None:
        """End a runner and release its memory."""

    def recalibrate(self) -> None:
        """Measure the overheads of the clock again."""

    def process_error(self, latency_ns: float, bound_ns: float = 0.0) -> float:
        """Return the standard deviation of ln(latency) between processes that run the same code.

        Args:
            latency_ns: latency of a call.
            bound_ns: lower bound of the call's time on this device (`sol_us`); 0.0 if it is not known.
        """

    def trust(self, latency_ns: float, claimed_ns: float) -> Trust:
        """Return the trust in the clock for calls of this duration.

        Args:
            latency_ns: latency of a call by the judge's clock.
            claimed_ns: duration of a call that the runner reports.
        """

    def close(self) -> None:
        """End all runners and release memory, files and the lock."""
