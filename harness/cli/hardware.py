"""`harness hardware`: the hardware figures of bounds, and measurements of a GPU that is not in the table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from harness.cli.display.output import echo, emit, json_option
from harness.errors import ConfigurationError
from harness.model.devices import parse_device
from harness.sol.hardware import Hardware, table
from harness.sol.measured_gpu import hardware_directory, hardware_of, store_rates, stored_rates, stored_targets


@click.group()
def hardware() -> None:
    """List the hardware figures from which bounds are computed, and measure a GPU that has none."""


@hardware.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """List all GPUs with figures: the vendor's, and those measured on this host."""
    directory = hardware_directory()
    hardware_figures = list(table().values())
    for target in stored_targets(directory):
        rates = stored_rates(target, directory)
        if rates is not None and target not in table():
            hardware_figures.append(hardware_of(rates))
    emit([_row(figures) for figures in hardware_figures], as_json=as_json, columns=_COLUMNS)


@hardware.command()
@click.option("--device", default="cuda:0", show_default=True, metavar="DEVICE", help="The GPU to measure.")
@json_option
def measure(device: str, *, as_json: bool) -> None:
    """Measure a GPU's bandwidth and peak rates once, and store them for all bounds on this host.

    Bounds on a GPU of the hardware table use the vendor's figures; the printed table compares both.
    """
    from harness.judge.devices.lock import take_device_lock
    from harness.sol import gpu_measurement

    kind, ordinal = parse_device(device, where="--device")
    if kind != "cuda":
        raise ConfigurationError(
            f"`{device}` is not a GPU; the CPU is measured automatically before the first bound",
            where="--device",
            remedy="--device cuda:0",
        )
    lock = take_device_lock(f"cuda-{gpu_measurement.gpu_id(ordinal)}", device)
    try:
        rates = gpu_measurement.measure_gpu(ordinal)
    finally:
        os.close(lock)
    file = store_rates(rates, hardware_directory())
    listed = table().get(rates.target)
    bound = listed or hardware_of(rates)
    double = max(bound.tflops.tensor.get("float64", 0.0), bound.tflops.vector["float64"])
    rows: list[dict[str, Any]] = [
        {"figure": "bandwidth GB/s", "measured": rates.bandwidth_gbs, "in bounds": bound.bandwidth_gbs},
        {"figure": "float32 TFLOP/s", "measured": rates.float32_tflops, "in bounds": bound.tflops.vector["float32"]},
        {"figure": "float64 TFLOP/s", "measured": rates.float64_tflops, "in bounds": double},
    ]
    dtypes = dict.fromkeys([*rates.tensor_tflops, *bound.tflops.tensor])
    for dtype in dtypes:
        if dtype != "float64":
            measured, in_bounds = rates.tensor_tflops.get(dtype), bound.tflops.tensor.get(dtype)
            rows.append({"figure": f"{dtype} products TFLOP/s", "measured": measured, "in bounds": in_bounds})
    columns: dict[str, Any] = {
        "figure": lambda row: row["figure"],
        "measured": lambda row: _number(row["measured"]),
        "in bounds": lambda row: _number(row["in bounds"]),
        "measured / bound": _share,
    }
    emit(rows, as_json=as_json, columns=columns)
    if not as_json:
        source = "the vendor's figures" if listed else "the measured figures, with margins"
        echo(f"\n{rates.name} (target {rates.target}), stored in {file}; bounds use {source}")


_COLUMNS: dict[str, Any] = {
    "target": lambda row: row["target"],
    "name": lambda row: row["name"],
    "rates": lambda row: row["rates"],
    "GB/s": lambda row: _number(row["bandwidth_gbs"]),
    "bf16": lambda row: _number(row["tensor_tflops"].get("bfloat16")),
    "fp8": lambda row: _number(row["tensor_tflops"].get("float8_e4m3fn")),
    "int8": lambda row: _number(row["tensor_tflops"].get("int8")),
    "fp4": lambda row: _number(row["tensor_tflops"].get("float4_e2m1fn_x2")),
    "fp32": lambda row: _number(row["vector_tflops"]["float32"]),
}


def _row(figures: Hardware) -> dict[str, Any]:
    return {
        "target": figures.target,
        "name": figures.name,
        "rates": "measured" if figures.is_measured else "listed",
        "bandwidth_gbs": figures.bandwidth_gbs,
        "tensor_tflops": dict(figures.tflops.tensor),
        "vector_tflops": dict(figures.tflops.vector),
        "source": dict(figures.source),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _share(row: Mapping[str, Any]) -> str:
    measured, bound = row["measured"], row["in bounds"]
    return "-" if measured is None or not bound else f"{measured / bound:.0%}"
