"""Use of a device's memory by one workload: how much there is, who holds it, and how much each part may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.judge.input_data.layout import Layout
from harness.judge.isolation.resource_limits import GIB
from harness.judge.memory_forecast import WorkloadMemory

_PROCESSES = 3
"""Processes that run the reference or something like it: the judge, the baseline's runner, and the candidate's."""
_SLACK_BYTES = 2 * GIB
"""Contexts of started runners, workspaces of libraries, and fragments; an estimate."""
FOREIGN_BYTES = GIB
"""Memory of processes outside the judge and its sandboxes up to which the device counts as the judge's alone."""
_PLACEMENTS_PER_CALL, _MIN_PLACEMENTS = 6.4, 4
"""Placements for each call of a batch (64 for ten calls), and least number of them. With twelve blocks each placement
has three calls that count, which `placement_variance` needs."""
_BUDGET_BYTES, _BUDGET_SHARE = 4 * GIB, 8
"""Limits of all placements of a runner together: bytes, and 1 / this share of the memory that is left for them."""
_SPARING_SHARE = 16
"""A workload whose two sets take at most 1 / this share of the device has two of them even if memory lacks."""
_LEAST_TRUTH_SHARE = 16
"""A float64 run keeps at least 1 / this share of the device: an operator needs its operands and its result there."""
_SETS_BYTES = 2 * GIB
"""Inputs and outputs of one batch together, unless one set alone is larger."""


@dataclass(frozen=True)
class MemoryState:
    """Use of a device's memory at one moment, in bytes."""

    total: int
    free: int
    """Memory that any process can allocate."""
    cached: int
    """Memory that the judge's allocator keeps for later use."""
    processes: Mapping[int, int] | None
    """Memory of each process by its id; None if the driver gives no such figures."""
    foreign: int | None
    """Memory of processes that are neither the judge nor its descendants; None as above."""

    @property
    def available(self) -> int:
        """Memory that the judge can use."""
        return self.free + self.cached

    @property
    def is_shared(self) -> bool:
        """True unless it is known that no other process holds memory worth mentioning."""
        return self.foreign is None or self.foreign > FOREIGN_BYTES

    def described(self) -> str:
        """Return the state in words."""
        foreign = "not known" if self.foreign is None else f"{self.foreign / GIB:.1f} GiB"
        return f"{self.available / GIB:.1f} of {self.total / GIB:.1f} GiB are free, held by other processes: {foreign}"


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of the device that one workload may use."""

    placements: int
    """Placements of each side."""
    sets: int
    """Sets of inputs and captured outputs that the judge holds at once, at most."""
    needed_bytes: int
    """Prediction of the memory of all processes with one placement and one set."""
    fits: bool
    """The prediction is not larger than the available memory."""
    sparing: bool = False
    """No process keeps memory while another one works: each gives its cached memory back after its batches."""


ONE_SET = MemoryPlan(placements=1, sets=1, needed_bytes=0, fits=True)
"""For calls that are not timed."""


def fitting_sets(layout: Layout) -> int:
    """Return the largest number of a workload's sets in one batch, at least 1."""
    return max(1, _SETS_BYTES // (layout.input_stride + layout.output_stride))


def placement_count(size: int, room: int, calls: int) -> int:
    """Return the number of placements for a runner, at least 1.

    Args:
        size: bytes of a placement.
        room: bytes of device memory for the placements of all runners and what they share it with.
        calls: largest number of calls in a batch.
    """
    usual = min(int(_PLACEMENTS_PER_CALL * calls), min(_BUDGET_BYTES, room // _BUDGET_SHARE) // size)
    return max(1, usual, min(_MIN_PLACEMENTS, room // _BUDGET_SHARE // size))


def truth_budget(memory: MemoryState) -> int:
    """Return the bytes that a float64 run may keep on the device; it moves the rest to host memory.

    Args:
        memory: current use of the device.
    """
    return max(memory.total // _LEAST_TRUTH_SHARE, memory.available - _SLACK_BYTES)


def plan_memory(
    memory: MemoryState, layout: Layout, forecast: WorkloadMemory, calls: int, *, sparing: bool = False
) -> MemoryPlan:
    """Divide the available memory.

    Args:
        memory: current use of the device.
        layout: the workload's inputs and outputs.
        forecast: memory of a run of the reference.
        calls: largest number of calls in a batch.
        sparing: use as little memory as possible, after a lack of it.
    """
    size = layout.input_stride + layout.output_stride
    # The truth moves what does not fit to host memory. It runs while the others keep the memory of their last call.
    fixed = _PROCESSES * forecast.reference_bytes + _SLACK_BYTES
    one_set = layout.input_stride + 3 * layout.output_stride  # captured outputs of both sides, and the expected ones
    needed_bytes = fixed + 2 * size + one_set
    room = max(0, memory.available - needed_bytes)
    if sparing:
        # The first call of a batch, which allocates its memory again, is not counted: two sets are a batch of two.
        sets = 2 if _SPARING_SHARE * 2 * size <= memory.total else 1
        return MemoryPlan(1, sets, needed_bytes, needed_bytes <= memory.available, sparing=True)
    sets = max(1, min(fitting_sets(layout), room // 4 // one_set))
    return MemoryPlan(placement_count(size, room, calls), sets, needed_bytes, needed_bytes <= memory.available)
