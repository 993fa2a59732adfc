"""The measurement of this host's CPU, and its storage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.sol.cpu import CACHE_MARGIN, measured_cpu
from harness.sol.hardware import Hardware
from harness.sol.targets import hardware

pytestmark = pytest.mark.xdist_group("measured")

MEASURED = {
    "read_gbs": 14.0, "copy_gbs": 13.0, "stream_gbs": 22.0, "cached_read_gbs": 60.0, "cached_copy_gbs": 80.0,
    "float32_gflops": 200.0, "float64_gflops": 100.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Hardware]:
    directory = tmp_path_factory.mktemp("cache")
    return directory, measured_cpu(directory)


def only_file(directory: Path) -> Path:
    (file,) = (directory / "sol").iterdir()
    return file


def test_the_figures_have_plausible_values(measured: tuple[Path, Hardware]) -> None:
    _, cpu = measured
    assert cpu.target == "cpu"
    assert cpu.name
    assert 0 < cpu.bandwidth_gbs < 1000
    assert cpu.cached_gbs is not None
    assert cpu.floor_gbs == cpu.cached_gbs > 0
    single, double = cpu.tflops.vector["float32"], cpu.tflops.vector["float64"]
    assert 0 < double < 5
    assert 0 < single < 5
    assert set(cpu.source) == {"bandwidth_gbs", "cached_gbs", "tflops"}


@pytest.mark.slow
@pytest.mark.serial
def test_the_figures_have_plausible_ratios(measured: tuple[Path, Hardware]) -> None:
    _, cpu = measured
    assert cpu.bandwidth_gbs > 1
    assert cpu.cached_gbs is not None
    assert cpu.cached_gbs > cpu.bandwidth_gbs
    single, double = cpu.tflops.vector["float32"], cpu.tflops.vector["float64"]
    assert 0.002 < double < single
    assert single == pytest.approx(2 * double, rel=0.3)


def test_another_measurement_can_raise_figures_but_not_lower_them(
    measured: tuple[Path, Hardware], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sol" / only_file(measured[0]).name
    file.parent.mkdir()
    file.write_text(json.dumps({**MEASURED, "read_gbs": 0.001, "copy_gbs": 0.001, "stream_gbs": 1e9}))
    assert measured_cpu(tmp_path).bandwidth_gbs == 1e9
    monkeypatch.setattr("harness.sol.cpu._SECONDS", 0.1)
    assert measured_cpu(tmp_path, remeasure=True).bandwidth_gbs == 1e9
    figures = json.loads(file.read_text())
    assert figures["stream_gbs"] == 1e9
    assert 0.1 < figures["read_gbs"] < 1000


def test_the_cpu_is_measured_once_and_then_read(
    measured: tuple[Path, Hardware], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, cpu = measured
    monkeypatch.setenv("PATH", "")  # no compiler: another measurement would fail
    monkeypatch.delenv("CXX", raising=False)
    assert measured_cpu(directory) == cpu == hardware("cpu", cache_dir=directory)
    figures = json.loads(only_file(directory).read_text())
    assert figures["cpu"] == cpu.name


def test_best_bandwidth_and_a_margin_on_the_cache(measured: tuple[Path, Hardware], tmp_path: Path) -> None:
    name = only_file(measured[0]).name
    (tmp_path / "sol").mkdir()
    (tmp_path / "sol" / name).write_text(json.dumps(MEASURED))
    cpu = measured_cpu(tmp_path)
    assert cpu.bandwidth_gbs == 22.0
    assert cpu.cached_gbs == CACHE_MARGIN * 80.0
    assert cpu.vector_tflops("bfloat16") == 0.2


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**MEASURED, "read_gbs": 0}), '{"read_gbs": "fast"}'])
def test_an_invalid_measurement_is_repeated(
    measured: tuple[Path, Hardware], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file = tmp_path / "sol" / only_file(measured[0]).name
    file.parent.mkdir()
    file.write_text(text)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigurationError, match=r"no C\+\+ compiler") as caught:
        measured_cpu(tmp_path)
    assert caught.value.remedy
    assert "g++" in caught.value.remedy


def test_a_compiler_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ConfigurationError, match="measurement of the CPU failed") as caught:
        measured_cpu(tmp_path)
    assert caught.value.where
    assert caught.value.where.endswith("false")
