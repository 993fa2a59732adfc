"""The requested metrics of Nsight Compute, and the conversion of their values to the counters of a kernel.

Only the metrics of this module are requested, and only numbers are read from the output, so that no text of a candidate
is copied to a report.

Source: Nsight Compute, Kernel Profiling Guide (structure and names of metrics), and its sections SpeedOfLight,
Occupancy, LaunchStats, WarpStateStats and MemoryWorkloadAnalysis, which show the same metrics.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.model.counters import KernelCounters, OccupancyLimit, Stall

_TIME = "gpu__time_duration.sum"
_DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
_DRAM_BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
_L1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
_COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_TENSOR = tuple(
    f"{name}.avg.pct_of_peak_sustained_elapsed"
    for name in (
        "sm__pipe_tensor_cycles_active",
        "sm__pipe_tensor_op_hmma_cycles_active",
        "sm__pipe_tensor_op_gmma_cycles_active",
    )
)
_BREAKDOWN = f"breakdown:{_COMPUTE}"
"""Expands to the units of the GPU's architecture, including its tensor cores."""
_ANY_TENSOR = re.compile(
    r"^sm__(inst_executed_)?(pipe_tensor|pipe_tc)[a-z0-9_]*\.avg\.pct_of_peak_sustained_(elapsed|active)$"
)
"""The existing metrics depend on the architecture. The largest value of those that count cycles is used."""
_L2_HIT = "lts__t_sector_hit_rate.pct"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_POSSIBLE = "sm__maximum_warps_per_active_cycle_pct"
_LIMITS: dict[OccupancyLimit, str] = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
"""Resource -> metric with the number of blocks per multiprocessor that it permits."""
_WAVES = "launch__waves_per_multiprocessor"
_REGISTERS = "launch__registers_per_thread"
_SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
_LOCAL_SECTORS = ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum")
_SECTOR_BYTES = 32
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_SHARED_PASSES = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_STALL = re.compile(r"^smsp__average_warps_issue_stalled_([a-z_]+)_per_issue_active\.ratio$")
_STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
_NO_STALLS = {"selected", "not_selected"}
"""States in which the warp issues an instruction or could do so."""
_MAX_STALLS = 3
_MIN_STALL_SHARE = 0.05
METRICS: tuple[str, ...] = (
    _TIME, _DRAM, *_DRAM_BYTES, _L2, _L1, _COMPUTE, *_TENSOR, _BREAKDOWN, _L2_HIT, _OCCUPANCY, _POSSIBLE,
    *_LIMITS.values(), _WAVES, _REGISTERS, *_SHARED, *_LOCAL_SECTORS, _CONFLICTS, _SHARED_PASSES,
    *(f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in _STALLS),
)  # fmt: skip
"""All metrics that are requested from Nsight Compute."""
CORE_METRICS: tuple[str, ...] = (
    _TIME, _DRAM, *_DRAM_BYTES, _L2, _L1, _COMPUTE, _L2_HIT, _OCCUPANCY, _POSSIBLE, _WAVES, _REGISTERS, *_SHARED,
)  # fmt: skip
"""Metrics of every architecture since sm_80, requested if Nsight Compute rejects the complete list."""
_KERNEL_COLUMN = "Kernel Name"
_UNITS = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9,
    "byte": 1.0, "byte/block": 1.0, "kbyte": 1e3, "kbyte/block": 1e3, "mbyte": 1e6, "gbyte": 1e9,
}  # fmt: skip
"""Unit in Nsight Compute's output -> factor to nanoseconds or bytes."""


@dataclass(frozen=True)
class ProfiledLaunch:
    """A row of Nsight Compute's table: the kernel's symbol, and the metrics that have a number."""

    symbol: str
    values: Mapping[str, float]


def parse_table(text: str) -> list[ProfiledLaunch]:
    """Return the launches in the output of `ncu --csv --page raw`.

    The output has messages, a header, a row of units, and a row for each launch. Columns of other metrics, and values
    that are not finite numbers, are ignored.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    begin = next((number for number, line in enumerate(lines) if f'"{_KERNEL_COLUMN}"' in line), None)
    if begin is None:
        return []
    rows = csv.reader(lines[begin:])
    header = next(rows)
    kernel_column = header.index(_KERNEL_COLUMN)
    metric_columns = {number: name for number, name in enumerate(header) if name in METRICS or _ANY_TENSOR.match(name)}
    units: list[str] = []
    launches = []
    for row in rows:
        if len(row) != len(header):
            continue
        if not row[0].strip():
            units = row
            continue
        values = {}
        for number, name in metric_columns.items():
            value = _number(row[number])
            if value is not None:
                values[name] = value * (_UNITS.get(units[number].lower(), 1.0) if units else 1.0)
        launches.append(ProfiledLaunch(row[kernel_column], values))
    return launches


def _number(text: str) -> float | None:
    """Return a finite non-negative number, with or without thousands separators; None for any other text."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def counters_of(kernel: str, launch: int, values: Mapping[str, float]) -> KernelCounters:
    """Convert the metrics of one launch to counters.

    Args:
        kernel: name of the kernel in the launch plan, cleaned.
        launch: position of the launch in the call.
        values: metric -> number, as `parse_table` returns them.
    """
    conflicts, passes = values.get(_CONFLICTS), values.get(_SHARED_PASSES)
    time_ns = values.get(_TIME)
    return KernelCounters(
        kernel=kernel,
        launch=launch,
        time_us=None if time_ns is None else min(time_ns / 1e3, 1e9 - 1),
        dram_share=_share(values.get(_DRAM)),
        dram_bytes=_sum(values, _DRAM_BYTES),
        l2_share=_share(values.get(_L2)),
        l1_share=_share(values.get(_L1)),
        compute_share=_share(values.get(_COMPUTE)),
        tensor_share=_share(_tensor(values)),
        l2_hit_share=_share(values.get(_L2_HIT)),
        occupancy=_share(values.get(_OCCUPANCY)),
        possible_occupancy=_share(values.get(_POSSIBLE)),
        occupancy_limits=_limits(values),
        waves=min(values[_WAVES], 1e9 - 1) if _WAVES in values else None,
        registers=_sum(values, (_REGISTERS,)),
        shared_bytes=_sum(values, _SHARED),
        spill_bytes=_sum(values, _LOCAL_SECTORS, _SECTOR_BYTES),
        bank_conflicts=_sum(values, (_CONFLICTS,)),
        bank_conflict_share=min(conflicts / passes, 1.0) if conflicts is not None and passes else None,
        stalls=_stalls(values),
    )


def _tensor(values: Mapping[str, float]) -> float | None:
    """Return the percentage of cycles in which tensor cores were active, or of their peak instruction rate.

    The rate is used on an architecture without a metric that counts cycles.
    """
    percents = {name: value for name, value in values.items() if _ANY_TENSOR.match(name)}
    cycles = [value for name, value in percents.items() if "cycles_active" in name]
    return max(cycles or percents.values(), default=None)


def _share(percent: float | None) -> float | None:
    """Return a percentage as a share of at most 1, because measurements can slightly exceed a sustained peak."""
    return None if percent is None else min(percent / 100, 1.0)


def _sum(values: Mapping[str, float], names: Iterable[str], factor: int = 1) -> int | None:
    numbers = [values[name] for name in names if name in values]
    return min(round(sum(numbers) * factor), (1 << 53) - 1) if numbers else None


def _limits(values: Mapping[str, float]) -> tuple[OccupancyLimit, ...]:
    """Return the resources that permit the fewest blocks."""
    blocks = {limit: values[name] for limit, name in _LIMITS.items() if values.get(name)}
    fewest_blocks = min(blocks.values(), default=0.0)
    return tuple(limit for limit, count in blocks.items() if count == fewest_blocks)


def _stalls(values: Mapping[str, float]) -> tuple[Stall, ...]:
    """Return the largest stall reasons, as shares of the cycles between two instructions of a warp."""
    cycles: dict[str, float] = {}
    for name, value in values.items():
        if match := _STALL.match(name):
            cycles[match[1]] = value
    total_cycles = sum(cycles.values())
    if not total_cycles:
        return ()
    shares = {name: count / total_cycles for name, count in cycles.items() if name not in _NO_STALLS}
    largest = sorted(shares, key=lambda name: -shares[name])[:_MAX_STALLS]
    stalls = [name for name in largest if shares[name] >= _MIN_STALL_SHARE]
    return tuple(Stall(reason=name.replace("_", " "), share=min(shares[name], 1.0)) for name in stalls)
