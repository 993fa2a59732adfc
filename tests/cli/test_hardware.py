"""`harness hardware`: figures of GPUs, and the measurement of an unknown GPU, with a stand-in for the measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli.hardware import hardware
from harness.sol import gpu_measurement
from harness.sol.measured_gpu import GpuRates
from tests.sol.gpu_rates import GB200, H200


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kernel-harness"


def measured(rates: GpuRates, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setattr(gpu_measurement, "gpu_id", lambda ordinal: f"{rates.id}-{ordinal}-in-tests")
    monkeypatch.setattr(gpu_measurement, "measure_gpu", lambda _: rates)
    return CliRunner().invoke(hardware, ["measure", *arguments], catch_exceptions=False)


def test_a_measured_gpu_is_listed_with_its_mark(user_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads(CliRunner().invoke(hardware, ["list", "--json"]).output)
    assert {row["rates"] for row in before} == {"listed"}
    completed = measured(GB200, monkeypatch)
    assert completed.exit_code == 0
    assert "NVIDIA GB200 (target gb200)" in completed.output
    assert "bounds use the measured figures, with margins" in completed.output
    assert (user_cache / "hardware" / "gb200.json").is_file()
    after = json.loads(CliRunner().invoke(hardware, ["list", "--json"]).output)
    (added,) = [row for row in after if row not in before]
    assert (added["target"], added["rates"], added["bandwidth_gbs"]) == ("gb200", "measured", 8400.0)
    assert "measured" in CliRunner().invoke(hardware, ["list"]).output


def test_a_listed_gpu_is_compared_with_the_vendors_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    completed = measured(H200, monkeypatch)
    assert "bounds use the vendor's figures" in completed.output
    (row,) = [line for line in completed.output.splitlines() if line.startswith("bandwidth")]
    assert row.split()[-3:] == ["4,300", "4,800", "90%"]
    rows = {row["figure"]: row for row in json.loads(measured(H200, monkeypatch, "--json").output)}
    assert rows["bfloat16 products TFLOP/s"]["in bounds"] == 989.5
    assert rows["int8 products TFLOP/s"]["measured"] is None


def test_only_gpus_are_measured() -> None:
    completed = CliRunner().invoke(hardware, ["measure", "--device", "cpu"])
    assert completed.exit_code != 0
    assert "`cpu` is not a GPU" in str(completed.exception)
