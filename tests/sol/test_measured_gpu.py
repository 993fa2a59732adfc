"""The rates of GPUs that are not in the table are those measured on this host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness.errors import ConfigurationError
from harness.sol import gpu_measurement
from harness.sol.hardware import target_name
from harness.sol.measured_gpu import hardware_of, store_rates, stored_rates, stored_targets
from harness.sol.roofline import bounds
from harness.sol.targets import MEASURE, hardware
from tests.sol.cases import BF16, FP4, FP8, INT8, Case, problem_of
from tests.sol.gpu_rates import GB200, H200


def test_a_gpu_that_is_neither_listed_nor_measured_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="`gb200` are neither listed nor measured on this host") as caught:
        hardware("gb200", measured_dir=tmp_path)
    assert caught.value.remedy == MEASURE
    assert MEASURE.startswith("harness hardware measure")


def test_a_measurement_is_stored_and_used_with_margins(tmp_path: Path) -> None:
    file = store_rates(GB200, tmp_path)
    assert stored_rates("gb200", tmp_path) == GB200
    assert stored_targets(tmp_path) == ["gb200"]
    figures = hardware("gb200", measured_dir=tmp_path)
    assert figures.is_measured
    assert figures.target == file.stem == "gb200"
    assert figures.bandwidth_gbs == pytest.approx(1.2 * 7000)
    assert figures.product_tflops(BF16) == pytest.approx(1.3 * 1800)
    assert figures.product_tflops(FP8) == pytest.approx(1.3 * 3600)
    # torch had no int8 and no 4-bit product there; the units have twice and four times the rate of 16 bits
    assert figures.product_tflops(INT8) == pytest.approx(2 * 1.3 * 1800)
    assert figures.product_tflops(FP4) == pytest.approx(4 * 1.3 * 1800)
    assert "int8, float8_e5m2, float4_e2m1fn_x2: a multiple of the rate of 16 bits" in figures.source["tflops"]
    assert figures.vector_tflops("float32") == pytest.approx(1.3 * 60)
    assert "GPU-1" in figures.source["bandwidth_gbs"]


def test_an_older_gpu_is_not_given_units_that_it_lacks() -> None:
    old = hardware_of(GB200.model_copy(update={"capability": (8, 0), "tensor_tflops": {"float16": 200.0}}))
    assert set(old.tflops.tensor) == {"float16", "tf32", "int8", "float64"}
    assert old.product_tflops(FP8) == pytest.approx(1.3 * 200)


def test_a_unit_that_torch_drives_badly_is_as_fast_as_its_generation_makes_it() -> None:
    slow = GB200.model_copy(update={"tensor_tflops": {"float16": 1800.0, "float8_e4m3fn": 2000.0}, "clock_mhz": 2000.0})
    assert hardware_of(slow).product_tflops(FP8) == pytest.approx(2 * 1.3 * 1800)
    # 152 multiprocessors of 128 lanes, a multiply-add each at 2 GHz: 77.8 TFLOP/s, below the measured 1.3 x 60
    assert hardware_of(slow).vector_tflops("float32") == pytest.approx(78.0)
    faster = hardware_of(slow.model_copy(update={"clock_mhz": 2100.0}))
    assert faster.vector_tflops("float32") == pytest.approx(152 * 128 * 2 * 2100 / 1e6)


def test_margins_cover_what_the_vendor_promises() -> None:
    """Bounds of measured rates are never above those of the datasheet on an H200, where both are known."""
    measured, listed = hardware_of(H200), hardware("h200")
    assert measured.bandwidth_gbs >= listed.bandwidth_gbs
    assert measured.product_tflops(BF16) >= listed.product_tflops(BF16)
    assert measured.product_tflops(FP8) >= listed.product_tflops(FP8)
    assert measured.vector_tflops("float32") >= listed.vector_tflops("float32")


def test_a_listed_gpu_keeps_the_vendors_figures(tmp_path: Path) -> None:
    store_rates(H200, tmp_path)
    assert hardware("h200", measured_dir=tmp_path).bandwidth_gbs == 4800
    assert not hardware("h200", measured_dir=tmp_path).is_measured


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**GB200.model_dump(mode="json"), "bandwidth_gbs": 0})])
def test_an_invalid_measurement_counts_as_none(tmp_path: Path, text: str) -> None:
    store_rates(GB200, tmp_path).write_text(text)
    assert stored_targets(tmp_path) == []
    with pytest.raises(ConfigurationError, match="neither listed nor measured"):
        hardware("gb200", measured_dir=tmp_path)


def test_bounds_of_measured_rates_are_marked(tmp_path: Path) -> None:
    """1024 x 4 B read and written: 8,192 B / (1.2 x 7000 GB/s) = 0.975 ns."""
    case = Case("double", {"x": "1024 float32"}, {"y": "1024 float32"}, "return x * 2", bytes=8192)
    problem = problem_of(case, tmp_path)
    result = bounds(problem, problem.workloads[0], hardware_of(GB200))
    assert result.is_measured
    assert result.sol_us == pytest.approx(8192 / 8400 / 1e3)


def test_names_of_drivers_become_targets() -> None:
    names = ["NVIDIA H200 NVL", "NVIDIA A10", "NVIDIA GB200", "Quadro RTX 6000/8000"]
    assert [target_name(name) for name in names] == ["h200-nvl", "a10", "gb200", "quadro-rtx-6000-8000"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
def test_without_a_gpu_there_is_nothing_to_measure() -> None:
    with pytest.raises(ConfigurationError, match="torch finds no GPU cuda:0"):
        gpu_measurement.measure_gpu(0)
