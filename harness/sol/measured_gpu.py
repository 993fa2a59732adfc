"""Figures of GPUs that are not in the table: measured once on this host by `harness hardware measure`, and stored.

A bound may not exceed the time of the best kernel, which may be faster than the measurement. Therefore rates have a
margin, and the unit of a narrow dtype has at least the rate of its generation relative to 16 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.model.base_models import StrictModel
from harness.model.paths import is_target
from harness.sol.hardware import Hardware, Peaks
from harness.workspace.directories import user_cache
from harness.workspace.files import atomic_write

BANDWIDTH_MARGIN = 1.2
"""Factor on measured bandwidth. An H200 copies at 4.3 of 4.8 TB/s, for which a factor of 1.12 suffices."""
PRODUCT_MARGIN = 1.3
"""Factor on measured products. An H200 reaches 800 of 989 bfloat16 TFLOP/s, for which a factor of 1.24 suffices."""
_UNITS = (
    # dtype, first compute capability with a unit for it, rate relative to that of float16
    ("tf32", (8, 0), 0.5),
    ("int8", (7, 5), 2.0),
    ("float8_e4m3fn", (8, 9), 2.0),
    ("float8_e5m2", (8, 9), 2.0),
    ("float4_e2m1fn_x2", (10, 0), 4.0),
)
"""Units of narrow dtypes: each halving of the operands' width doubles the rate.

Source: NVIDIA's whitepapers of Turing, Ampere, Ada, Hopper and Blackwell.
"""
_LANES, _LANES_OF_80 = 128, 64
"""float32 lanes of a multiprocessor; the second number is for compute capabilities up to 8.0.

Source: CUDA C++ Programming Guide, arithmetic throughput.
"""


class GpuRates(StrictModel):
    """Stored result of one measurement of a GPU."""

    format: Literal[1] = 1
    target: str
    name: str
    """Name that the driver reports."""
    id: str
    """Identity of the measured GPU."""
    measured_at: str
    """UTC, ISO 8601."""
    torch: str
    capability: tuple[int, int]
    multiprocessors: int = Field(gt=0)
    memory_gb: float = Field(gt=0)
    l2_mib: float = Field(ge=0)
    clock_mhz: float | None = None
    bandwidth_gbs: float = Field(gt=0)
    """Best rate of reading, writing and copying."""
    tensor_tflops: Mapping[str, float]
    """Rates of matrix products by operand dtype, without those that torch lacks; `tf32` for truncated float32."""
    float32_tflops: float = Field(gt=0)
    """Rate of float32 products without matrix units, which is that of the vector units."""
    float64_tflops: float = Field(gt=0)


def hardware_directory() -> Path:
    """Return the directory of this host's measurements, which all workspaces of a user share."""
    return user_cache() / "hardware"


def store_rates(rates: GpuRates, directory: Path) -> Path:
    """Store a measurement for all later bounds on this host, and return its file."""
    file = directory / f"{rates.target}.json"
    atomic_write(file, json.dumps(rates.model_dump(mode="json"), indent=2) + "\n")
    return file


def stored_rates(target: str, directory: Path) -> GpuRates | None:
    """Return the stored measurement of a target; None if there is none, or it cannot be read."""
    if not is_target(target):
        return None
    try:
        return GpuRates.model_validate(load_json_file(directory / f"{target}.json"))
    except (OSError, FormatError, ValidationError):
        return None


def stored_targets(directory: Path) -> list[str]:
    """Return the targets that were measured on this host, sorted."""
    return sorted(file.stem for file in directory.glob("*.json") if stored_rates(file.stem, directory))


def hardware_of(rates: GpuRates) -> Hardware:
    """Return the figures of bounds from a measurement: with margins, and with units that were not measured."""
    tensor = {dtype: PRODUCT_MARGIN * rate for dtype, rate in rates.tensor_tflops.items()}
    half = max(tensor.get("float16", 0.0), tensor.get("bfloat16", 0.0))
    units = {dtype: ratio * half for dtype, since, ratio in _UNITS if rates.capability >= since}
    raised = [dtype for dtype, rate in units.items() if rate > tensor.get(dtype, 0.0)]
    tensor |= {dtype: units[dtype] for dtype in raised}
    single = max(PRODUCT_MARGIN * rates.float32_tflops, _vector_peak_tflops(rates))
    double = PRODUCT_MARGIN * rates.float64_tflops
    measured = f"measured on this host ({rates.id}, {rates.measured_at}, torch {rates.torch})"
    note = f"; {', '.join(raised)}: a multiple of the rate of 16 bits" if raised else ""
    return Hardware(
        target=rates.target,
        name=rates.name,
        devices=(rates.name,),
        is_measured=True,
        multiprocessors=rates.multiprocessors,
        clock_mhz=rates.clock_mhz,
        memory_gb=rates.memory_gb,
        bandwidth_gbs=BANDWIDTH_MARGIN * rates.bandwidth_gbs,
        l2_mib=rates.l2_mib,
        tflops=Peaks(
            tensor={**tensor, "float64": double},
            # Packed 16-bit arithmetic is at most twice as fast (CUDA C++ Programming Guide, arithmetic throughput).
            vector={"float32": single, "float64": double, "float16": 2 * single, "bfloat16": 2 * single},
        ),
        source={
            "bandwidth_gbs": f"{measured}, times {BANDWIDTH_MARGIN}",
            "tflops": f"{measured}, times {PRODUCT_MARGIN}{note}",
            "l2_mib": measured,
            "clock_mhz": measured,
        },
    )


def _vector_peak_tflops(rates: GpuRates) -> float:
    """Return the rate of one multiply-add per lane and clock; 0 if the clock is unknown."""
    lanes = _LANES_OF_80 if rates.capability < (8, 6) else _LANES
    return rates.multiprocessors * lanes * 2 * (rates.clock_mhz or 0.0) / 1e6
