"""Output of Nsight Compute as documented for `--csv --page raw --print-units base`, and a stand-in for it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

IDENTITY = {
    "ID": "0",
    "Process ID": "4711",
    "Process Name": "python3.12",
    "Host Name": "127.0.0.1",
    "Kernel Name": "run",
    "Context": "1",
    "Stream": "7",
    "Block Size": "(256, 1, 1)",
    "Grid Size": "(1024, 1, 1)",
    "Device": "0",
    "CC": "9.0",
}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
MEMORY_BOUND: dict[str, tuple[str, str]] = {
    "gpu__time_duration.sum": ("ns", "41,216"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "91.25"),
    "dram__bytes_read.sum": ("byte", "134,217,728"),
    "dram__bytes_write.sum": ("byte", "67,108,864"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "45.50"),
    "l1tex__throughput.avg.pct_of_peak_sustained_active": ("%", "30.10"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "21.00"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": ("%", "0"),
    "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_elapsed": ("", "n/a"),
    "lts__t_sector_hit_rate.pct": ("%", "33.40"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "88.00"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "100"),
    "launch__occupancy_limit_registers": ("block", "8"),
    "launch__occupancy_limit_shared_mem": ("block", "16"),
    "launch__occupancy_limit_warps": ("block", "8"),
    "launch__occupancy_limit_blocks": ("block", "32"),
    "launch__waves_per_multiprocessor": ("", "7.76"),
    "launch__registers_per_thread": ("register/thread", "32"),
    "launch__shared_mem_per_block_static": ("byte/block", "1,024"),
    "launch__shared_mem_per_block_dynamic": ("byte/block", "0"),
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": ("sector", "10"),
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": ("sector", "0"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("", "250"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": ("", "1,000"),
    STALL.format("long_scoreboard"): ("inst", "12.0"),
    STALL.format("selected"): ("inst", "1.0"),
    STALL.format("not_selected"): ("inst", "1.0"),
    STALL.format("wait"): ("inst", "2.0"),
    STALL.format("barrier"): ("inst", "0.1"),
    "smsp__secret_metric.sum": ("", "1"),
}
"""Metric -> (unit, text) of one launch."""


def table(rows: Sequence[tuple[str, Mapping[str, tuple[str, str]]]]) -> str:
    """Return a log: messages, then the table of (kernel's symbol, metrics) rows."""
    metrics = list(rows[0][1])
    csv_text = io.StringIO()
    lines = csv.writer(csv_text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    lines.writerow([*IDENTITY, *metrics])
    lines.writerow([*[""] * len(IDENTITY), *(rows[0][1][name][0] for name in metrics)])
    for number, (symbol, values) in enumerate(rows):
        identity = IDENTITY | {"ID": str(number), "Kernel Name": symbol}
        lines.writerow([*identity.values(), *(values[name][1] for name in metrics)])
    return f"==PROF== Connected to process 4711 (/usr/bin/python3.12)\n{csv_text.getvalue()}"


def stand_in(directory: Path, log: str, *, code: int = 0, refuses: str = "") -> Path:
    """Write a stand-in for Nsight Compute, for a machine without a GPU, and return its path.

    It writes `log` to the file that its options name. If the metric `refuses` is requested, it fails with the metric's
    name.
    """
    directory.mkdir(parents=True)
    (directory / "log.csv").write_text(log)
    program = directory / "ncu"
    refused = f'case "$*" in *{refuses}*) echo "==ERROR== Failed to find metric {refuses}" > "$log"; exit 1;; esac\n'
    program.write_text(
        "#!/bin/sh\n"
        'log=; before=; for word in "$@"; do [ "$before" = --log-file ] && log=$word; before=$word; done\n'
        + (refused if refuses else "")
        + f'cat {directory}/log.csv > "$log"\nexit {code}\n'
    )
    program.chmod(0o755)
    return program
