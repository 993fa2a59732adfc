"""Text of kernels' counters and resources, for terminals and agents."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.counters import CounterReport, KernelCounters, KernelResources

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
