"""Counters: output of Nsight Compute becomes limited numbers and a sentence, and its failures become a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.formats.solutions import load_solution
from harness.judge.counters import ncu
from harness.judge.counters.bottleneck import with_bottleneck
from harness.judge.counters.metrics import METRICS, counters_of, parse_table
from harness.judge.counters.ncu import find_ncu
from harness.judge.counters.profiling import (
    ProfileTarget,
    choose_workload,
    find_profiled,
    profile_replay,
    staged_replay,
)
from harness.judge.counters.replays import find_replay, replay_key, store_replay
from harness.judge.input_data.inputs import InputSource
from harness.judge.sides import Stage, Staged
from harness.model.config import SandboxKind
from harness.model.counters import CounterReport, KernelCounters, kernel_name, report_lines
from harness.model.launches import Pointer, ResolvedLaunch, ResolvedPlan
from harness.model.problem import Problem
from harness.runner.messages import Program
from tests.judge.ncu_output import MEMORY_BOUND, STALL, stand_in, table
from tests.judge.problem_in_memory import problem, tensor

pytestmark = pytest.mark.usefixtures("own_locks")

WHERE = ProfileTarget("h200", "NVIDIA H200", "GPU-0", "none", Path("/nonexistent"))


def counters(**changes: str) -> KernelCounters:
    values = {name: (unit, changes.get(name, text)) for name, (unit, text) in MEMORY_BOUND.items()}
    (launch,) = parse_table(table([("run", values)]))
    return with_bottleneck(counters_of("run", 0, launch.values))


def test_a_table_becomes_counters() -> None:
    counted = counters()
    assert counted.time_us == 41.216
    assert counted.dram_share == 0.9125
    assert counted.dram_bytes == 134_217_728 + 67_108_864
    assert (counted.l2_share, counted.l1_share, counted.compute_share, counted.tensor_share) == (
        0.455,
        0.301,
        0.21,
        0.0,
    )
    assert counted.l2_hit_share == pytest.approx(0.334)
    assert (counted.occupancy, counted.possible_occupancy) == (0.88, 1.0)
    assert counted.occupancy_limits == ("registers", "warps")
    assert (counted.registers, counted.shared_bytes, counted.spill_bytes) == (32, 1024, 320)
    assert (counted.bank_conflicts, counted.bank_conflict_share) == (250, 0.25)
    stalls = [(stall.reason, round(stall.share, 3)) for stall in counted.stalls]
    assert stalls == [("long scoreboard", round(12 / 16.1, 3)), ("wait", round(2 / 16.1, 3))]


def test_only_known_metrics_and_finite_numbers_are_read() -> None:
    values = MEMORY_BOUND | {
        "gpu__time_duration.sum": ("us", "41.5"),
        "dram__bytes_read.sum": ("byte", "\x1b[31mred"),
        "dram__bytes_write.sum": ("byte", "-5"),
        "lts__t_sector_hit_rate.pct": ("%", "inf"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "180"),
    }
    (launch,) = parse_table(table([("run", values)]))
    assert "smsp__secret_metric.sum" not in launch.values
    counted = counters_of("run", 0, launch.values)
    assert counted.time_us == 41.5
    assert counted.dram_bytes is None
    assert counted.l2_hit_share is None
    assert counted.compute_share == 1.0
    assert parse_table("==ERROR== nothing\nno table") == []


@pytest.mark.parametrize(
    ("changes", "bottleneck", "words"),
    [
        ({}, "memory bandwidth", "memory bandwidth is the limit, at 91% of its peak: only fewer bytes help"),
        (
            {
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "20",
                "sm__throughput.avg.pct_of_peak_sustained_elapsed": "93",
                "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "92",
            },
            "tensor cores",
            "tensor cores is the limit",
        ),
        (
            {
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "20",
                "sm__throughput.avg.pct_of_peak_sustained_elapsed": "93",
            },
            "arithmetic",
            "only fewer instructions help",
        ),
        (
            {
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "35",
                "sm__warps_active.avg.pct_of_peak_sustained_active": "20",
            },
            "latency",
            "no unit is above 46% of its peak; warps spend 75% of their time waiting for loads from global memory",
        ),
        (
            {
                "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "35",
                "launch__waves_per_multiprocessor": "0.4",
            },
            "too few blocks",
            "the launch has 0.40 waves of blocks",
        ),
        (
            {"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "70"},
            "memory bandwidth",
            "memory bandwidth is the busiest unit, at 70% of its peak; warps spend",
        ),
    ],
)
def test_one_sentence_names_the_bottleneck(changes: dict[str, str], bottleneck: str, words: str) -> None:
    counted = counters(**changes)
    assert counted.bottleneck == bottleneck
    assert words in counted.sentence
    if bottleneck == "latency":
        assert "occupancy is 20%, limited by registers and warps" in counted.sentence


def test_the_largest_cycle_count_of_tensor_cores_counts() -> None:
    cycles = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
    issued = "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active"
    (launch,) = parse_table(table([("run", MEMORY_BOUND | {cycles: ("%", "55"), issued: ("%", "99")})]))
    assert counters_of("run", 0, launch.values).tensor_share == 0.55


def test_names_of_kernels_are_cleaned() -> None:
    assert kernel_name("3:_Z3runPKf") == "_Z3runPKf"
    assert kernel_name("tile<64, 8>\x1b[31m\n|`") == "tile<64, 8>31m"
    assert len(kernel_name("x" * 500)) == 80


# --- replays, and a profile with a stand-in for Nsight Compute ---


def _staged(symbols: dict[str, str], plans: dict[str, ResolvedPlan]) -> Staged:
    def put(stage: Stage) -> Program:
        (stage.directory / "kernel.cubin").write_bytes(b"\x7fELF")
        (stage.directory / "names.json").write_text(json.dumps({"symbols": symbols}))
        return Program("cuda", artefacts=(stage.inside(stage.directory),))

    return Staged(put, 1.0, {uuid: plan.as_json() for uuid, plan in plans.items()})


@pytest.fixture
def sample_problem() -> Problem:
    return problem(
        {"x": tensor("float32", "n"), "flag": {"dtype": "bool", "shape": ["n"]}},
        {"y": tensor("float32", "n")},
        "def run(x, flag):\n    return x\n",
        {"n": 100},
    )


def _plan(*kernels: str) -> ResolvedPlan:
    arguments = (Pointer("input:x", 0), Pointer("output:y", 0))
    return ResolvedPlan(
        tuple(
            ResolvedLaunch(name, (1, 1, 1), (32, 1, 1), 0, None, cooperative=False, args=arguments) for name in kernels
        ),
        {},
    )


def _profile(sample_problem: Problem, tmp_path: Path, sandbox: SandboxKind = "none") -> Any:
    staged = _staged({"first": "_Z5firstv", "second": "_Z6secondv"}, {"w": _plan("first", "second", "first")})
    store_replay(tmp_path / "cache", "key", staged)
    replay = find_replay(tmp_path / "cache", "key")
    assert replay is not None
    where = ProfileTarget("h200", "NVIDIA H200", "GPU-0", sandbox, tmp_path / "cache")
    return profile_replay(
        sample_problem, sample_problem.workloads[0], replay, InputSource(sample_problem, seed=1), where
    )


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_launches_are_matched_with_the_plan(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: SandboxKind
) -> None:
    rows = [("_Z5firstv", MEMORY_BOUND), ("memset_of_the_driver", MEMORY_BOUND), ("_Z6secondv", MEMORY_BOUND)]
    program = stand_in(tmp_path / "nsight", table(rows))
    monkeypatch.setattr(ncu, "find_ncu", lambda: program)
    report = _profile(sample_problem, tmp_path, sandbox)
    assert report.reason is None
    assert [(kernel.kernel, kernel.launch) for kernel in report.kernels] == [("first", 0), ("second", 1)]
    assert report.launches == 3
    lines = report_lines(report)
    assert lines[0] == "workload w: 2 of 3 launches, caches cold"
    assert lines[1].startswith("first, 50% of the call: memory bandwidth is the limit")
    assert lines[-1].startswith("Times under the profiler are not those of a verdict")


@pytest.mark.parametrize(("rows", "kernels"), [(3, ["first", "second", "first"]), (2, [])])
def test_names_in_another_form_are_matched_by_their_order(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, kernels: list[str]
) -> None:
    program = stand_in(tmp_path / "nsight", table([("void first(float)", MEMORY_BOUND)] * rows))
    monkeypatch.setattr(ncu, "find_ncu", lambda: program)
    report = _profile(sample_problem, tmp_path)
    assert [kernel.kernel for kernel in report.kernels] == kernels
    assert (report.reason is None) is bool(kernels)


def test_a_rejected_metric_is_omitted(sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = STALL.format("gmma")
    program = stand_in(tmp_path / "nsight", table([("_Z5firstv", MEMORY_BOUND)]), refuses=refused)
    monkeypatch.setattr(ncu, "find_ncu", lambda: program)
    assert refused in METRICS
    assert [kernel.kernel for kernel in _profile(sample_problem, tmp_path).kernels] == ["first"]


@pytest.mark.parametrize(
    ("log", "code", "reason", "fix"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
            1,
            "the driver does not permit this user to read counters (ERR_NVGPUCTRPERM)",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("==WARNING== No kernels were profiled.", 0, "Nsight Compute found no launch", "ncu --version"),
        (
            "==ERROR== Failed to profile: \x1b[31msecret text of another user",
            9,
            "Nsight Compute ended with code 9 and no counters",
            "nvidia-smi",
        ),
    ],
)
def test_a_failure_of_the_profiler_is_the_reason(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, code: int, reason: str, fix: str
) -> None:
    program = stand_in(tmp_path / "nsight", log, code=code)
    monkeypatch.setattr(ncu, "find_ncu", lambda: program)
    report = _profile(sample_problem, tmp_path)
    assert (report.kernels, report.reason) == ((), reason)
    assert fix in (report.fix or "")
    assert report_lines(report)[0] == f"no counters: {reason}"


def test_a_profiler_that_hangs_is_ended(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = stand_in(tmp_path / "nsight", "")
    program.write_text("#!/bin/sh\nwhile :; do sleep 1; done\n")
    monkeypatch.setattr(ncu, "find_ncu", lambda: program)
    monkeypatch.setattr(ncu, "PROFILE_S", 0.2)
    report = _profile(sample_problem, tmp_path)
    assert (report.reason or "").startswith("Nsight Compute did not finish within")


def test_without_nsight_compute(sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    report = _profile(sample_problem, tmp_path)
    assert report.reason == "Nsight Compute (ncu) is not installed on the judge's host"
    find_ncu.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_ncu() is None or find_ncu() == Path("/usr/local/cuda/bin/ncu").resolve()
    find_ncu.cache_clear()


def test_the_launcher_gets_its_request_and_the_inputs(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_files: dict[str, Any] = {}

    def look(stage: Path, **_: object) -> ncu.NcuResult:
        request_files["request"] = json.loads((stage / "request.json").read_text())
        request_files["inputs"] = (stage / "inputs").read_bytes()
        request_files["cubin"] = (stage / "replay-0" / "kernel.cubin").read_bytes()
        return ncu.NcuResult(reason="looked")

    monkeypatch.setattr("harness.judge.counters.profiling.profile_request", look)
    _profile(sample_problem, tmp_path)
    request = request_files["request"]
    assert request["inputs"] == {"x": 0, "flag": 448}
    assert request["plan"]["steps"][0]["args"][0] == {"buffer": "input:x", "offset": 0, "kind": "pointer"}
    assert len(request_files["inputs"]) == request["input_bytes"] == 4096
    assert any(request_files["inputs"][:400])
    assert set(request_files["inputs"][448:548]) <= {0, 1}
    assert request_files["cubin"] == b"\x7fELF"


def test_solutions_that_were_changed_or_have_not_passed_are_not_profiled(
    sample_problem: Problem, tmp_path: Path
) -> None:
    directory = tmp_path / "solution"
    directory.mkdir()
    (directory / "kernel.cu").write_text("__global__ void run(const float* x, float* y) {}")
    (directory / "solution.yaml").write_text(
        "language: cuda\nentry: kernel.cu::run\nlaunch:\n- {kernel: run, grid: [1], block: [1], args: [x, y]}\n"
    )
    solution = load_solution(directory)
    where = ProfileTarget("h200", "NVIDIA H200", "GPU-0", "none", tmp_path / "cache")
    report = find_profiled(sample_problem, solution, None, where)
    assert isinstance(report, CounterReport)
    assert report.needs_verdict
    assert "only a solution that PASSED" in (report.reason or "")
    key = replay_key(sample_problem, solution, "NVIDIA H200")
    assert key != replay_key(sample_problem, solution, "NVIDIA B200")
    store_replay(tmp_path / "cache", key, _staged({"run": "run"}, {"w": _plan("run")}))
    profiled = find_profiled(sample_problem, solution, None, where)
    assert not isinstance(profiled, CounterReport)
    assert (profiled[0].uuid, profiled[1].symbols) == ("w", {"run": "run"})
    (tmp_path / "cache" / "replays" / key / "kernel.cubin").write_bytes(b"other")
    assert find_replay(tmp_path / "cache", key) is None


def test_a_report_without_counters_has_the_reason(sample_problem: Problem, tmp_path: Path) -> None:
    directory = tmp_path / "solution"
    directory.mkdir()
    (directory / "kernel.py").write_text("def run(x, flag):\n    return x\n")
    (directory / "solution.yaml").write_text("language: pytorch\nentry: kernel.py::run\n")
    solution = load_solution(directory)
    report = find_profiled(sample_problem, solution, None, WHERE)
    assert isinstance(report, CounterReport)
    assert "language pytorch makes its launches from its own host code" in (report.reason or "")
    on_cpu = ProfileTarget("cpu", "a CPU", "cpu", "none", tmp_path)
    report = find_profiled(sample_problem, solution, None, on_cpu)
    assert isinstance(report, CounterReport)
    assert report.reason == "no hardware counters are read on the target cpu"
    assert choose_workload(sample_problem, "x") is None
    assert choose_workload(sample_problem, None) == sample_problem.workloads[0]


def test_the_request_asks_for_whitelisted_metrics_of_the_marked_launches_only() -> None:
    words = ncu.ncu_arguments(METRICS, "log")
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--metrics") + 1].split(",") == list(METRICS)


def test_a_runner_loads_a_stored_replay(tmp_path: Path) -> None:
    store_replay(tmp_path / "cache", "key", _staged({"run": "run"}, {"w": _plan("run")}))
    replay = find_replay(tmp_path / "cache", "key")
    assert replay is not None
    staged = staged_replay(replay)
    stage = Stage(tmp_path / "stage", lambda path: f"/stage/{path.name}")
    stage.directory.mkdir()
    program = staged.put(stage)
    assert program == Program("cuda", artefacts=("/stage/replay-0",))
    assert {path.name for path in (stage.directory / "replay-0").iterdir()} == {"kernel.cubin", "names.json"}
    assert staged.sealed
    assert staged.plans["w"] == json.loads(json.dumps(_plan("run").as_json()))


def test_latencies_are_reported_with_and_without_counters() -> None:
    words = "a call takes 12.00 us with a cold L2, as it is judged, and 8.00 us warm"
    assert report_lines(CounterReport(reason="no ncu", cold_us=12, warm_us=8)) == ["no counters: no ncu", words]
    assert words in report_lines(CounterReport(kernels=(counters(),), launches=1, cold_us=12, warm_us=8))
