"""Bounds and hardware in the form for prompts, also through the process that computes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.model.device_description import DeviceDescription
from harness.sol import describe as describe_module
from harness.sol.describe import DescribeRequest, describe
from harness.sol.hardware import Hardware, Peaks

PROBLEM = Path(__file__).parents[2] / "problems/starter/rmsnorm_h4096"


def request(tmp_path: Path, target: str) -> DescribeRequest:
    return DescribeRequest(
        problem_dir=PROBLEM, problem="starter/rmsnorm_h4096", data_root=None, target=target, cache=tmp_path
    )


def test_a_gpu_is_described_with_the_bounds_of_every_workload(tmp_path: Path) -> None:
    description = describe(request(tmp_path, "h200"))
    assert description.device[0] == "NVIDIA H200 SXM: 132 multiprocessors at up to 1,980 MHz"
    assert "a plain copy reaches 4,300" in description.device[1]
    assert any("228 KiB shared memory" in line for line in description.device)
    assert len(description.bounds) == 6
    assert {bound.limited_by for bound in description.bounds.values()} == {"memory"}
    for bound in description.bounds.values():
        assert bound.sol_us is not None
        assert bound.bytes is not None
        assert bound.sol_us == pytest.approx(bound.bytes / 4800e9 * 1e6)


def test_caches_of_unknown_size_are_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Hardware(
        target="cpu", name="core", bandwidth_gbs=1.0, tflops=Peaks(vector={"float32": 1.0, "float64": 0.5}), source={}
    )
    for number, files in enumerate(({"level": "1", "type": "Data", "size": "32K"}, {"level": "2", "type": "Unified"})):
        (tmp_path / f"index{number}").mkdir()
        for name, text in files.items():
            (tmp_path / f"index{number}" / name).write_text(f"{text}\n")
    monkeypatch.setattr(describe_module, "_CACHES", tmp_path)
    monkeypatch.setattr(describe_module, "hardware", lambda *_, **__: machine)
    description = describe(request(tmp_path, "cpu"))
    assert "caches: L1 32K" in description.device


def test_the_process_prints_the_description_or_the_reason_for_its_absence(tmp_path: Path, own_locks: None) -> None:
    del own_locks
    command = [sys.executable, "-m", "harness.sol.describe"]
    text = request(tmp_path, "h200").model_dump_json()
    completed = subprocess.run([*command, text], capture_output=True, text=True, timeout=120, check=True)
    assert DeviceDescription.model_validate_json(completed.stdout).target == "h200"
    text = request(tmp_path, "no-such-gpu").model_dump_json()
    failed = subprocess.run([*command, text], capture_output=True, text=True, timeout=120, check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "no-such-gpu" in failed.stderr
