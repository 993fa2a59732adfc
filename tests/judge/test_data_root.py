"""Inputs from files outside of the problem, and workloads whose bound cannot be computed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from harness.judge.devices.interface import Clock, Device, DeviceHardware, RunnerPool
from harness.judge.judge import Judge
from harness.model.verdict import Verdict
from harness.sol.measured_gpu import hardware_directory, store_rates
from harness.sol.roofline import Bounds, NoBoundError
from harness.sol.targets import MEASURE
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import judge, write_cpp, write_problem
from tests.safetensors import write_safetensors
from tests.sol.cases import Case, problem_of
from tests.sol.gpu_rates import GB200

pytestmark = pytest.mark.xdist_group("judge")

UNKNOWABLE = """
import torch

def run(x, factor):
    if torch.utils._python_dispatch.is_in_torch_dispatch_mode():
        raise RuntimeError("no analysis is possible")
    return x * factor
"""
"""A reference that runs, and that raises under an analysis."""


def test_a_file_input_is_judged_and_a_missing_bound_is_a_note(court: JudgeProcess, tmp_path: Path) -> None:
    problem = write_problem(tmp_path, reference=UNKNOWABLE, sizes=(4_000,))
    data = tmp_path / "data"
    write_safetensors(data / "x.safetensors", "x", "F32", [4_000], struct.pack("<4000f", *range(4_000)))
    line = json.loads((problem / "workload.jsonl").read_text())
    line["inputs"]["x"] = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
    (problem / "workload.jsonl").write_text(json.dumps(line))
    solution = write_cpp(tmp_path / "solution")
    answer = judge(court, problem, solution, data_root=str(data))
    assert answer.verdict is Verdict.PASSED, answer.reason
    (workload,) = answer.workloads
    assert (workload.sol_us, workload.floor_us, workload.score, workload.bound_rates) == (None, None, None, None)
    assert workload.note is not None
    assert "no bound: the reference does not run" in workload.note
    assert "no analysis is possible" in workload.note


def test_an_unlisted_gpu_has_no_bound_until_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    case = Case("double", {"x": "1024 float32"}, {"y": "1024 float32"}, "return x * 2", bytes=8192)
    problem = problem_of(case, tmp_path)
    hardware, runners = create_autospec(DeviceHardware, instance=True), create_autospec(RunnerPool, instance=True)
    hardware.target = "gb200"
    clock = create_autospec(Clock, instance=True)
    gb200_judge = Judge(Device(hardware, runners, clock, clock), cache_dir=tmp_path, sandbox="none")
    no_bound = gb200_judge.bounds(problem, problem.workloads[0])
    assert isinstance(no_bound, NoBoundError)
    assert "`gb200` are neither listed nor measured" in no_bound.message
    assert no_bound.remedy == MEASURE
    store_rates(GB200, hardware_directory())
    bounds = gb200_judge.bounds(problem, problem.workloads[0])
    assert isinstance(bounds, Bounds)
    assert bounds.is_measured
