"""A device as the judge uses it: its hardware, its runners, and its clocks.

Everything else (rounds, blocks, correctness, verdicts) is the same for all devices and is outside of this package. A
judge opens a device once and holds its lock until the judge ends.

`DeviceHardware` is the physical unit with the judge's own work on it, `RunnerPool` supplies processes for solutions,
and a `Clock` opens a runner (`Connection`), times its calls, and closes it. A device has one clock for code that makes
its own calls, and may have another one for sealed code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import torch

from harness.judge.correctness import Summed
from harness.judge.input_data.copies import BatchedCopy
from harness.judge.input_data.layout import Layout
from harness.judge.memory_plan import MemoryPlan, MemoryState
from harness.judge.reference import Value
from harness.judge.runners import Runner
from harness.model.judging import DeviceRecord
from harness.model.languages import Language
from harness.model.verdict import Trust
from harness.runner.messages import Program

T = TypeVar("T")


class RunnerTrust(StrEnum):
    """Origin of the code that a runner executes."""

    CANDIDATE = "candidate"
    """Host code of a candidate, or of a problem's `baseline/`, which agents write."""
    LAUNCHER = "launcher"
    """The judge's own launcher, which launches device code of a candidate."""
    REFERENCE = "reference"
    """Trusted code: a problem's reference, a library baseline, or the judge's own calls."""

    @property
    def runs_untrusted_host_code(self) -> bool:
        """True if the process may do anything that its sandbox allows."""
        return self is RunnerTrust.CANDIDATE


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


@dataclass(eq=False)
class Connection:
    """A runner that a clock has opened. Each device adds the memory that the runner shares with the judge."""

    runner: Runner
    trust: RunnerTrust


class Memory(Protocol):
    """Memory of one workload: `capacity` slots, each with the inputs and outputs of one call."""

    layout: Layout
    capacity: int

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """Return a slot's inputs by name, to be written in place; a Python scalar is a 0-d tensor of 64 bits."""

    def inputs(self, slot: int) -> list[Value]:
        """Return a slot's inputs in the order of the reference's arguments."""

    def outputs(self, connection: Any, slot: int) -> dict[str, torch.Tensor]:  # noqa: ANN401 - each device's own type
        """Return the outputs, by name, that a runner wrote.

        Args:
            connection: the runner of the last batch.
            slot: number of the slot.
        """


class DeviceHardware(Protocol):
    """The physical unit, whose lock this judge holds, and the judge's own work on it.

    Methods with a body are the same for hardware that does not replace them.
    """

    target: str
    """cpu, h200, b200 ..."""
    languages: tuple[Language, ...]
    """Languages of the solutions that this hardware can run."""
    memory_on: torch.device
    """Device of the judge's own copy of the inputs."""
    summed: Summed
    """Compares outputs."""
    copy_all: BatchedCopy | None = None
    """Copies many pieces of the judge's own memory at once; None if each is copied separately."""

    def facts(self) -> dict[str, object]:
        """Return name, stable id and current state, for the entry."""

    def timing(self) -> AbstractContextManager[None]:
        """Hold the host's timing lock inside this context: disturbing work waits, and earlier work is waited for."""

    def all_processors(self) -> AbstractContextManager[None]:
        """Use every processor for long work of the judge inside this context, in which nothing is timed.

        By default the work is on the device, and the context has no effect.
        """
        return nullcontext()

    def map_slots(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Do work of the judge for each slot, on several processors if possible, while nothing is timed.

        Args:
            work: called with the number of a slot.
            slots: numbers of the slots.

        Returns:
            The results in the order of the slots. All calls have ended; the first exception in this order is raised.
        """
        return [work(slot) for slot in slots]

    def memory_state(self) -> MemoryState | None:
        """Return the use of the device's memory; None if it is the host's, which the kernel shares out."""
        return None

    def release_caches(self, *, keep_reserve: bool = True) -> None:
        """Give memory that the judge keeps for later use back to the device; by default it keeps none.

        Args:
            keep_reserve: keep what is reserved so that no candidate can exhaust it.
        """
        del keep_reserve

    def close(self) -> None:
        """Release memory, files and the lock."""


class RunnerPool(Protocol):
    """Runners of one device. Some are started ahead."""

    def take(self, trust: RunnerTrust, *, needs_torch: bool = True) -> Runner:
        """Return a new runner.

        Args:
            trust: whose code it will execute. Only trusted code gets a compiler cache, which no candidate can write.
            needs_torch: false permits a runner that has not imported torch.
        """

    def start_standby(self) -> None:
        """Start the next runners in advance; call this while nothing is timed."""

    def settle(self) -> None:
        """Wait until no runner of this judge is starting or ending."""

    def after_check(self) -> None:
        """Prepare for the next check, after the answer to one between two batches of an evaluation."""

    def end(self, runner: Runner) -> None:
        """End a runner."""

    def end_standby(self) -> None:
        """End the runners that were started ahead, whose memory is needed for something else."""

    def close(self) -> None:
        """End all runners."""


class Clock(Protocol):
    """Opens runners with a program, times their calls, and closes them.

    Methods with a body are the same for clocks that do not replace them.
    """

    hardware: DeviceHardware
    runners: RunnerPool
    calibration: Calibration
    separate_calls: bool
    """Each call is requested and timed separately, so that no call can do the work of another."""
    work_outlasts_stop: bool
    """Device work that a runner's code enqueued may run while its process is stopped."""

    def facts(self) -> dict[str, object]:
        """Return the overheads of the clock, for the entry's record of the device."""

    def open(self, runner: Runner, program: Program, trust: RunnerTrust) -> Connection:
        """Load a program into a new runner, and connect the runner to the device. End the runner if that fails.

        Args:
            runner: a new runner, in whose stage the program's files are.
            program: what it loads.
            trust: whose code it executes.

        Raises:
            RunnerFailed: loading crashed, raised or took too long.
        """

    def prepare(
        self,
        connection: Any,  # noqa: ANN401 - each device's own type
        layout: Layout,
        slots: int,
        *,
        variant: str = "",
        launches: Mapping[str, Any] | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        """Give a runner memory for its next workload, and let it prepare the calls.

        Args:
            connection: an open runner.
            layout: the workload's inputs and outputs.
            slots: number of sets that the judge uses at a time; with 1 the runner has few placements.
            variant: variant of the reference to run, as "compile"; "" for a solution.
            launches: launch plan of a sealed solution for this workload.
            plan: the workload's use of memory; None: as much as usual.

        Raises:
            RunnerFailed: the runner crashed or did not answer.
            NoDeviceMemory: the judge cannot allocate the memory.
        """

    def most_calls(self, workloads: int) -> int:
        """Return the largest number of calls in a batch.

        Args:
            workloads: number of the problem's workloads that are timed.
        """
        del workloads
        return self.calibration.most_calls

    def memory(self, layout: Layout, workloads: int = 1, plan: MemoryPlan | None = None) -> Memory:
        """Return the judge's memory with the layout of one workload.

        Args:
            layout: the workload's inputs and outputs.
            workloads: number of the problem's workloads that are timed. The memory may have fewer slots if there are
                several, because the mean of all of them counts.
            plan: the workload's use of memory; None: as much as usual.
        """

    def time_calls(self, connection: Any, memory: Any, slots: Sequence[int], within_s: float) -> Batch:  # noqa: ANN401 - each device's own types
        """Poison the outputs, flush the caches, continue the runner, time its calls, and stop it.

        The runner is stopped before and after, unless it runs no host code of a candidate.

        Args:
            connection: a runner that is prepared for the workload.
            memory: the workload's memory.
            slots: slots to compute, in order.
            within_s: timeout of the batch, or of each call where calls are timed separately.

        Raises:
            RunnerFailed: the candidate failed in a way that determines its verdict.
        """

    def release_memory(self, connection: Any) -> None:  # noqa: ANN401 - each device's own type
        """Let a runner give back device memory that it keeps for its next calls.

        Raises:
            RunnerFailed: the runner crashed or did not answer.
        """
        del connection  # by default, runners use host memory

    def untried(self, connection: Any) -> int:  # noqa: ANN401 - each device's own type
        """Return the number of placements at which a runner has made no call on this workload yet."""
        del connection  # by default, all runners use the same slots
        return 0

    def conclude(self, connection: Any) -> None:  # noqa: ANN401 - each device's own type
        """Check, after the last call on a workload, that a runner did no work between its calls.

        Raises:
            RunnerFailed: it worked without a request.
        """
        del connection  # by default, a runner is stopped between its batches

    def close(self, connection: Any) -> None:  # noqa: ANN401 - each device's own type
        """End a runner and release its memory."""

    def reserve(self, layouts: Sequence[Layout]) -> bool:
        """Allocate memory for at least one set of inputs and outputs of each workload.

        By default memory is allocated for each workload by itself.

        Args:
            layouts: layouts of the workloads.

        Returns:
            True if the memory was replaced, so that runners that were opened before are unusable.
        """
        del layouts
        return False

    def temporary_memory(self, layouts: Sequence[Layout]) -> AbstractContextManager[None]:
        """Give separate memory to the runners that are opened inside this context, which all end before it does.

        By default memory is allocated for each workload and each runner.
        """
        del layouts
        return nullcontext()

    def release(self) -> None:
        """Release the memory that the clock keeps for runners, all of which have ended; by default it keeps none."""

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


@dataclass(frozen=True)
class Device:
    """One physical unit with its runners and clocks."""

    hardware: DeviceHardware
    runners: RunnerPool
    clock: Clock
    """For code that makes its own calls."""
    sealed_clock: Clock
    """For sealed code; the same clock on a device with one clock."""

    @property
    def clocks(self) -> tuple[Clock, ...]:
        """Each clock once."""
        return (self.clock,) if self.sealed_clock is self.clock else (self.clock, self.sealed_clock)

    def clock_for(self, *, sealed: bool) -> Clock:
        """Return the clock for sealed solutions or for all others."""
        return self.sealed_clock if sealed else self.clock

    def record(self) -> DeviceRecord:
        """Return the current state of the device for the entry."""
        facts = self.hardware.facts()
        for clock in self.clocks:
            facts |= clock.facts()
        return DeviceRecord.model_validate(facts)

    def close(self) -> None:
        """End all runners and release memory, files and the lock."""
        self.runners.close()
        for clock in self.clocks:
            clock.release()
        self.hardware.close()


@contextmanager
def closing_connection(clock: Clock, connection: Connection) -> Iterator[Connection]:
    """Close a connection at the end of this context."""
    try:
        yield connection
    finally:
        clock.close(connection)
