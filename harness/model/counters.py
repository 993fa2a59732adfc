"""Resources of compiled kernels, and hardware counters of their launches. Information only: no verdict reads them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Share = Annotated[float, Field(ge=0, le=1)]
"""A share of a peak or of a whole."""
KernelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_$:.<>, ()*&-]*$", max_length=80)]

OccupancyLimit = Literal["registers", "shared memory", "warps", "blocks", "barriers"]
Bottleneck = Literal[
    "memory bandwidth", "tensor cores", "arithmetic", "L2", "shared memory and L1", "latency", "too few blocks"
]


class _CountersPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KernelResources(_CountersPart):
    """Resources of one compiled kernel."""

    kernel: KernelName
    registers: Annotated[int, Field(ge=0, le=65_536)]
    """Of each thread."""
    shared_bytes: Count
    """Static shared memory of a block; a launch may add dynamic shared memory."""
    local_bytes: Count
    """Stack frame of each thread, in local memory: arrays with variable indices, and spilled registers."""
    spill_store_bytes: Count | None = None
    """Bytes that spilled registers are stored with, of each thread, as the assembler counts them; null for cubins that
    come without its log."""
    spill_load_bytes: Count | None = None


class Stall(_CountersPart):
    """A reason for which warps waited."""

    reason: Annotated[str, Field(pattern=r"^[a-z_ ]+$", max_length=40)]
    share: Share
    """Of the cycles that warps spend between two of their instructions."""


class KernelCounters(_CountersPart):
    """One launch as the hardware counted it, with cold caches. Null: the GPU has no such counter."""

    kernel: KernelName
    launch: Count
    """Position among the launches of a call, from 0."""
    time_us: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Under the profiler, which is not the time of a verdict."""
    dram_share: Share | None = None
    """Of the peak bandwidth of device memory."""
    dram_bytes: Count | None = None
    l2_share: Share | None = None
    """Of the peak throughput of L2."""
    l1_share: Share | None = None
    """Of the peak throughput of L1 and shared memory."""
    compute_share: Share | None = None
    """Of the peak throughput of the busiest unit of the multiprocessors."""
    tensor_share: Share | None = None
    """Of the cycles, those in which tensor cores worked."""
    l2_hit_share: Share | None = None
    occupancy: Share | None = None
    """Achieved: active warps, of those that a multiprocessor can hold."""
    possible_occupancy: Share | None = None
    """Highest occupancy that registers, shared memory and the size of a block allow."""
    occupancy_limits: tuple[OccupancyLimit, ...] = ()
    """Resource with the lowest limit; several where their limits are equal."""
    waves: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Blocks of the launch, in units of those that the GPU holds at once."""
    registers: Count | None = None
    shared_bytes: Count | None = None
    """Of a block: static and dynamic."""
    spill_bytes: Count | None = None
    """Local memory that the launch read and wrote, in bytes."""
    bank_conflicts: Count | None = None
    """Additional passes of accesses to shared memory that conflicts between banks caused."""
    bank_conflict_share: Share | None = None
    """Of all passes of accesses to shared memory."""
    stalls: tuple[Stall, ...] = ()
    """The largest first, three at most."""
    bottleneck: Bottleneck | None = None
    sentence: Annotated[str, Field(max_length=400)] = ""
    """Names the bottleneck; written by the judge."""


class CounterReport(_CountersPart):
    """The counters of one call of a solution on one workload, or why there are none."""

    workload: str | None = None
    """Its uuid."""
    kernels: tuple[KernelCounters, ...] = Field(default=(), max_length=16)
    """In the order of the launches."""
    cold_us: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """A call without the profiler, L2 displaced before it: as verdicts are timed, from a few calls."""
    warm_us: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """The same right after another call on the same data."""
    launches: Count = 0
    """Of the call; the profiler reads the first ones only."""
    reason: str | None = None
    """Why there are no counters."""
    fix: str | None = None
    """Action that makes counters available."""
    needs_verdict: bool = False
    """The solution is not known to pass: it must be judged first."""
    took_s: Annotated[float, Field(ge=0)] = 0.0


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_$:.<>, ()*&-]")
_CUBIN_NUMBER = re.compile(r"^\d+:")
_LONGEST_NAME = 80


def kernel_name(name: str) -> str:
    """Return a kernel's name without the number of its cubin, cut, and with only the characters of C++ names.

    Names come from candidates, and are the only text of theirs in a report.
    """
    return _NOT_IN_NAMES.sub("", _CUBIN_NUMBER.sub("", name))[:_LONGEST_NAME]
