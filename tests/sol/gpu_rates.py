"""Recorded measurements of GPUs."""

from __future__ import annotations

from harness.sol.measured_gpu import GpuRates

GB200 = GpuRates(
    target="gb200",
    name="NVIDIA GB200",
    id="GPU-1",
    measured_at="2026-11-01T10:00:00+00:00",
    torch="2.13.0",
    capability=(10, 0),
    multiprocessors=152,
    memory_gb=186.0,
    l2_mib=126.0,
    bandwidth_gbs=7000.0,
    tensor_tflops={"float16": 1800.0, "bfloat16": 1800.0, "tf32": 900.0, "float8_e4m3fn": 3600.0},
    float32_tflops=60.0,
    float64_tflops=30.0,
)
"""A GPU that is not in the table, with round figures."""
H200 = GB200.model_copy(
    update={
        "target": "h200", "name": "NVIDIA H200", "capability": (9, 0), "bandwidth_gbs": 4300.0,
        "tensor_tflops": {"float16": 800.0, "bfloat16": 800.0}, "float32_tflops": 52.0,
    }
)  # fmt: skip
"""A GPU that is in the table."""
