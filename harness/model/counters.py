"""Resources of compiled kernels, and hardware counters of their launches, also as text. No verdict reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from harness.model.base_models import StrictModel

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Share = Annotated[float, Field(ge=0, le=1)]
"""A share of a peak or of a whole."""
KernelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_$:.<>, ()*&-]*$", max_length=80)]

OccupancyLimit = Literal["registers", "shared memory", "warps", "blocks", "barriers"]
Bottleneck = Literal[
    "memory bandwidth", "tensor cores", "arithmetic", "L2", "shared memory and L1", "latency", "too few blocks"
]


class KernelResources(StrictModel):
    """Resources of one compiled kernel."""

    kernel: KernelName
    registers: Annotated[int, Field(ge=0, le=65_536)]
    """Registers of each thread."""
    shared_bytes: Count
    """Static shared memory of a block; a launch may add dynamic shared memory."""
    local_bytes: Count
    """Stack frame of each thread in local memory: arrays with variable indices, and spilled registers."""
    spill_store_bytes: Count | None = None
    """Bytes of each thread's spill stores, as the assembler counts them; null for cubins without an assembler log."""
    spill_load_bytes: Count | None = None
    """The same of spill loads."""


class Stall(StrictModel):
    """A reason for which warps waited."""

    reason: Annotated[str, Field(pattern=r"^[a-z_ ]+$", max_length=40)]
    share: Share
    """Share of the cycles that warps spend between two of their instructions."""


class KernelCounters(StrictModel):
    """Hardware counters of one launch with cold caches; null where the GPU lacks the counter."""

    kernel: KernelName
    launch: Count
    """Position among the launches of a call, from 0."""
    time_us: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Microseconds under the profiler; a verdict uses other times."""
    dram_share: Share | None = None
    """Share of the peak bandwidth of device memory."""
    dram_bytes: Count | None = None
    """Bytes that the launch read from and wrote to device memory."""
    l2_share: Share | None = None
    """Share of the peak throughput of L2."""
    l1_share: Share | None = None
    """Share of the peak throughput of L1 and shared memory."""
    compute_share: Share | None = None
    """Share of the peak throughput of the multiprocessors' busiest unit."""
    tensor_share: Share | None = None
    """Share of the cycles in which tensor cores were active."""
    l2_hit_share: Share | None = None
    occupancy: Share | None = None
    """Achieved occupancy: active warps as a share of the warps that a multiprocessor can hold."""
    possible_occupancy: Share | None = None
    """Highest occupancy that registers, shared memory and the size of a block allow."""
    occupancy_limits: tuple[OccupancyLimit, ...] = ()
    """Resource with the lowest limit; several where their limits are equal."""
    waves: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Blocks of the launch divided by the blocks that the GPU can hold at once."""
    registers: Count | None = None
    """Registers of each thread."""
    shared_bytes: Count | None = None
    """Static and dynamic shared memory of a block."""
    spill_bytes: Count | None = None
    """Bytes of local memory that the launch read and wrote."""
    bank_conflicts: Count | None = None
    """Additional passes of shared-memory accesses, caused by bank conflicts."""
    bank_conflict_share: Share | None = None
    """Share of all passes of shared-memory accesses."""
    stalls: tuple[Stall, ...] = ()
    """At most three, the largest first."""
    bottleneck: Bottleneck | None = None
    sentence: Annotated[str, Field(max_length=400)] = ""
    """Statement of the bottleneck; written by the judge."""


class CounterReport(StrictModel):
    """Counters of one call of a solution on one workload, or the reason for missing counters."""

    workload: str | None = None
    """The workload's uuid."""
    kernels: tuple[KernelCounters, ...] = Field(default=(), max_length=16)
    """In the order of the launches."""
    cold_us: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Latency without the profiler and with a flushed L2, as verdicts are timed; from a few calls."""
    warm_us: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Latency immediately after another call on the same data."""
    launches: Count = 0
    """Launches of the call; the profiler reads only the first ones."""
    reason: str | None = None
    """Reason for missing counters."""
    fix: str | None = None
    """Action that makes counters available."""
    needs_verdict: bool = False
    """The solution has no PASSED verdict and must be judged before it is profiled."""
    took_s: Annotated[float, Field(ge=0)] = 0.0


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_$:.<>, ()*&-]")
_CUBIN_NUMBER = re.compile(r"^\d+:")
_LONGEST_NAME = 80


def kernel_name(name: str) -> str:
    """Return a kernel's name without its cubin number, cut to 80 characters and restricted to those of C++ names.

    Candidates choose the names, which are the only text in a report that comes from a candidate.
    """
    return _NOT_IN_NAMES.sub("", _CUBIN_NUMBER.sub("", name))[:_LONGEST_NAME]


_MAX_KERNELS = 8


def resource_lines(resources: Sequence[KernelResources]) -> list[str]:
    """Return a line for each of the first kernels: registers, shared memory, spills."""
    lines = []
    for kernel in resources[:_MAX_KERNELS]:
        parts = [f"{kernel.registers} registers", f"{_bytes(kernel.shared_bytes)} static shared memory"]
        if kernel.spill_store_bytes is None or kernel.spill_load_bytes is None:
            parts.append(f"{_bytes(kernel.local_bytes)} local memory per thread (spills or arrays)")
        elif kernel.spill_store_bytes or kernel.spill_load_bytes:
            parts.append(f"SPILLS: {kernel.spill_store_bytes} B stored, {kernel.spill_load_bytes} B loaded per thread")
        else:
            parts.append("no spills")
        lines.append(f"kernel {kernel.kernel}: {', '.join(parts)}")
    if len(resources) > _MAX_KERNELS:
        lines.append(f"and {len(resources) - _MAX_KERNELS} more kernels")
    return lines


def report_lines(report: CounterReport) -> list[str]:
    """Return a report as lines: each kernel's summary and numbers, or the reason for missing counters."""
    latency = []
    if report.cold_us is not None and report.warm_us is not None:
        latency = [
            f"a call takes {report.cold_us:.2f} us with a cold L2, as it is judged, and {report.warm_us:.2f} us warm"
        ]
    if report.reason is not None and not report.kernels:
        return [f"no counters: {report.reason}", *([f"fix: {report.fix}"] if report.fix else []), *latency]
    lines = [f"workload {report.workload}: {len(report.kernels)} of {report.launches} launches, caches cold"]
    call_us = sum(kernel.time_us or 0.0 for kernel in report.kernels)
    for kernel in report.kernels:
        share = f", {kernel.time_us / call_us:.0%} of the call" if kernel.time_us and call_us else ""
        lines.append(f"{kernel.kernel}{share}: {kernel.sentence}")
        lines += [f"  {line}" for line in _counter_lines(kernel)]
    lines += latency
    lines.append("Times under the profiler are not those of a verdict, and no verdict uses these numbers.")
    return lines


def _counter_lines(kernel: KernelCounters) -> list[str]:
    peaks = (
        ("device memory", kernel.dram_share),
        ("L2", kernel.l2_share),
        ("L1 and shared memory", kernel.l1_share),
        ("multiprocessors", kernel.compute_share),
        ("tensor cores", kernel.tensor_share),
    )
    lines = ["share of peak: " + ", ".join(f"{name} {share:.1%}" for name, share in peaks if share is not None)]
    memory = [] if kernel.time_us is None else [f"{kernel.time_us:.2f} us"]
    if kernel.dram_bytes is not None:
        memory.append(f"{_bytes(kernel.dram_bytes)} of device memory")
    if kernel.l2_hit_share is not None:
        memory.append(f"L2 hit rate {kernel.l2_hit_share:.1%}")
    lines.append(", ".join(memory))
    if kernel.occupancy is not None:
        possible = "" if kernel.possible_occupancy is None else f" of {kernel.possible_occupancy:.1%} possible"
        limits = f", limited by {' and '.join(kernel.occupancy_limits)}" if kernel.occupancy_limits else ""
        waves = "" if kernel.waves is None else f"; {kernel.waves:.2f} waves of blocks"
        lines.append(f"occupancy {kernel.occupancy:.1%}{possible}{limits}{waves}")
    lines.append(", ".join(_resource_parts(kernel)))
    if kernel.stalls:
        lines.append("stalls: " + ", ".join(f"{stall.reason} {stall.share:.0%}" for stall in kernel.stalls))
    return [line for line in lines if line]


def _resource_parts(kernel: KernelCounters) -> list[str]:
    parts = []
    if kernel.registers is not None:
        parts.append(f"{kernel.registers} registers")
    if kernel.shared_bytes is not None:
        parts.append(f"{_bytes(kernel.shared_bytes)} shared memory per block")
    if kernel.spill_bytes is not None:
        parts.append(f"{_bytes(kernel.spill_bytes)} through local memory (spills)")
    if kernel.bank_conflicts is not None:
        share = "" if kernel.bank_conflict_share is None else f" ({kernel.bank_conflict_share:.0%} of all passes)"
        parts.append(f"{kernel.bank_conflicts} bank conflicts{share}")
    return parts


def _bytes(size: int) -> str:
    for unit, unit_bytes in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= unit_bytes:
            return f"{size / unit_bytes:.1f} {unit}"
    return f"{size} B"
