"""The hardware table is complete, and its figures agree with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.sol.hardware import Hardware, Peaks, table, target_of
from harness.sol.targets import hardware

GPUS = sorted(table())


def test_the_table_has_the_targets_people_ask_for() -> None:
    assert {"b200", "h200", "h100", "h100_pcie", "a100", "l40s", "rtx4090", "rtx5090"} <= set(GPUS)


@pytest.mark.parametrize("target", GPUS)
def test_every_figure_has_a_source(target: str) -> None:
    figures = hardware(target)
    assert figures.target == target
    for figure in ("bandwidth_gbs", "l2_mib", "clock_mhz", "tflops"):
        assert getattr(figures, figure), figure
        assert len(figures.source[figure]) > 10, figure
    assert (figures.attainable is None) == ("attainable" not in figures.source)
    assert figures.devices
    assert all(target_of(name) == target for name in figures.devices)


@pytest.mark.parametrize("target", GPUS)
def test_peaks_are_dense_and_in_order(target: str) -> None:
    peaks = hardware(target).tflops
    assert {"bfloat16", "float16", "tf32"} <= set(peaks.tensor)
    assert {"float32", "float64"} <= set(peaks.vector)
    assert peaks.tensor["bfloat16"] > peaks.tensor["tf32"] >= peaks.vector["float32"] >= peaks.vector["float64"]
    assert peaks.tensor["tf32"] == pytest.approx(peaks.tensor["bfloat16"] / 2, rel=0.03)
    if "float8_e4m3fn" in peaks.tensor:
        assert peaks.tensor["float8_e4m3fn"] == pytest.approx(2 * peaks.tensor["float16"], rel=0.03)


@pytest.mark.parametrize("target", GPUS)
def test_vector_peak_is_what_the_units_and_the_clock_give(target: str) -> None:
    """128 float32 lanes a multiprocessor (64 on the A100), two operations a multiply-add, at the highest clock."""
    figures = hardware(target)
    assert figures.clock_mhz is not None
    lanes = 64 if target == "a100" else 128
    possible = figures.multiprocessors * lanes * 2 * figures.clock_mhz / 1e6
    assert figures.tflops.vector["float32"] == pytest.approx(possible, rel=0.08)


def test_attainable_is_below_the_datasheet() -> None:
    h200 = hardware("h200")
    assert h200.attainable is not None
    assert h200.attainable.bandwidth_gbs == 4300 < h200.bandwidth_gbs == 4800
    assert 770 <= h200.attainable.tensor["bfloat16"] <= 800 < h200.tflops.tensor["bfloat16"]


def test_products_run_on_the_fastest_unit_that_keeps_their_accuracy() -> None:
    h200 = hardware("h200")
    assert h200.product_tflops("bfloat16") == 989.5
    assert h200.product_tflops("float32") == pytest.approx(989.5 / 3)
    assert h200.product_tflops("float32", "bfloat16") == h200.product_tflops("int8", "float32") == 989.5 / 2
    assert h200.product_tflops("float8_e4m3fn", "bfloat16") == 989.5
    assert h200.product_tflops("float8_e4m3fn") == h200.product_tflops("int8") == 1979
    assert h200.product_tflops("float4_e2m1fn_x2") == 1979  # no unit of its own: the values fit into eight bits
    assert hardware("b200").product_tflops("float4_e2m1fn_x2") == 9000
    assert hardware("a100").product_tflops("float8_e4m3fn") == 312
    assert hardware("rtx4090").product_tflops("float32") == 330.3 / 3
    assert h200.product_tflops("float64") == 66.9
    assert h200.vector_tflops("int32") == h200.vector_tflops("float32")
    plain = Hardware(name="plain", bandwidth_gbs=10, tflops=Peaks(vector={"float32": 0.1, "float64": 0.05}), source={})
    assert plain.product_tflops("bfloat16") == 0.1
    assert plain.product_tflops("float64") == 0.05


def test_an_unknown_target_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        hardware("h300", measured_dir=tmp_path)
    assert "h200" in str(caught.value)
    assert "harness hardware measure" in str(caught.value)
    assert target_of("NVIDIA H300") is None


def test_the_cpu_needs_a_place_for_its_measurement() -> None:
    with pytest.raises(ConfigurationError, match="measured"):
        hardware("cpu")


def test_the_files_of_the_package_are_beside_it() -> None:
    import harness.sol

    directory = Path(harness.sol.__path__[0])
    assert (directory / "hardware.yaml").is_file()
    assert (directory / "cpu_probe.cpp").is_file()
