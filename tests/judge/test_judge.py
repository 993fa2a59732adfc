"""The judge as a process that receives requests and answers them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from harness.model.verdict import Trust, Verdict
from harness.sol.targets import hardware
from harness.workspace.blocking_judge import JudgeProcess, judge_process
from tests.judge.courtroom import KERNEL, judge, write_cpp, write_problem, write_pytorch

pytestmark = pytest.mark.xdist_group("judge")

_WRITE_EVERYWHERE = """
import os, struct
def run(x, factor, y):
    y[:] = x * factor
    for fd in range(3, 256):
        try: os.write(fd, {})
        except OSError: pass
"""
STARTER = Path(__file__).resolve().parents[2] / "problems" / "starter"


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("name", sorted(path.name for path in STARTER.iterdir()))
def test_no_starting_solution_is_faster_than_its_bound(court: JudgeProcess, tmp_path: Path, name: str) -> None:
    """The bound is a measurement of this machine: on a busy one it may be above the solution's latency."""
    shutil.copytree(STARTER / name, tmp_path / "starter" / name)
    answer = judge(court, tmp_path / "starter" / name, STARTER / name / "solutions" / "cpu")
    assert answer.verdict is Verdict.PASSED, answer.reason
    for workload in answer.workloads:
        assert workload.floor_us is not None
        assert workload.latency_us is not None
        assert workload.floor_us < workload.latency_us


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in STARTER.iterdir()))
def test_starting_solutions_pass_and_their_numbers_follow_from_their_parts(
    court: JudgeProcess, tmp_path: Path, name: str
) -> None:
    problem = tmp_path / "starter" / name
    shutil.copytree(STARTER / name, problem)
    lines = (problem / "workload.jsonl").read_text().splitlines(keepends=True)
    (problem / "workload.jsonl").write_text(lines[0] + lines[-1])
    answer = judge(court, problem, problem / "solutions" / "cpu")
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.reason is None
    assert answer.trust is Trust.BOUNDED
    assert (answer.summary.passed, answer.summary.of) == (2, 2)
    assert answer.environment.sandbox == "bubblewrap"
    for workload in answer.workloads:
        assert workload.latency_us is not None
        assert workload.baseline_us is not None
        assert workload.speedup == pytest.approx(workload.baseline_us / workload.latency_us)
        assert workload.speedup == pytest.approx(math.exp(math.fsum(workload.log_ratios) / len(workload.log_ratios)))
        assert workload.blocks == len(workload.log_ratios) >= 12
        assert workload.checked == min(workload.calls, 22 * (workload.blocks + workload.discarded))
        assert workload.variant == "eager"
        assert workload.floor_us is not None


def _rarely(*values: object) -> ParameterSet:
    """Mark a case as slow; a similar case is part of every run of the suite."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("source", "verdict", "reason_part"),
    [
        ("#error no\n" + KERNEL, Verdict.COMPILE_ERROR, "kernel.cpp:1:2: error: #error no"),
        _rarely('extern "C" void scale() { undefined(); }', Verdict.COMPILE_ERROR, "kernel.cpp:1"),
        _rarely("static void scale() {}\nvoid (*kept)() = scale;", Verdict.RUNTIME_ERROR, "undefined symbol: scale"),
        ('extern "C" void scale() {}', Verdict.INCORRECT_NUMERICAL, "not finite (or were not written)"),
        _rarely('extern "C" void scale() { *(volatile int*)8 = 1; }', Verdict.RUNTIME_ERROR, "killed by SIGSEGV"),
        _rarely(
            '#include <unistd.h>\nextern "C" void scale() { _exit(0); }', Verdict.RUNTIME_ERROR, "exited with code 0"
        ),
        ('extern "C" void scale(float* x) { x[0] = 1; }', Verdict.RUNTIME_ERROR, "inputs are read-only"),
        _rarely(KERNEL.replace("i < n", "i < n - 1"), Verdict.INCORRECT_NUMERICAL, "1 values are not finite"),
        _rarely(KERNEL.replace("* (float)factor", "* 1.50005f"), Verdict.INCORRECT_NUMERICAL, "output `y`"),
    ],
)
def test_a_mistake_in_cpp_has_a_verdict(
    court: JudgeProcess, tmp_path: Path, source: str, verdict: Verdict, reason_part: str
) -> None:
    answer = judge(court, write_problem(tmp_path), write_cpp(tmp_path / "solution", source))
    assert answer.verdict is verdict, answer.reason
    assert reason_part in str(answer.reason)
    if verdict is not Verdict.COMPILE_ERROR:
        assert str(answer.reason).startswith("workload n40000: ")
    assert [workload.verdict for workload in answer.workloads] == [verdict]
    assert answer.summary.speedup is None


@pytest.mark.parametrize(
    ("source", "spec", "verdict", "reason_part"),
    [
        _rarely(
            "def run(x, factor, y):\n    raise ValueError('no such thing')\n",
            {},
            Verdict.RUNTIME_ERROR,
            "no such thing",
        ),
        _rarely("def run(:\n", {}, Verdict.COMPILE_ERROR, "kernel.py"),
        _rarely("def run(): pass\nraise SystemExit(3)\n", {}, Verdict.RUNTIME_ERROR, "SystemExit: 3"),
        (
            "def run(x, factor):\n    return (x * factor)[1:]\n",
            {"destination_passing": False},
            Verdict.INCORRECT_SHAPE,
            "number 0",
        ),
        _rarely(
            "def run(x, factor):\n    return (x * factor).double()\n",
            {"destination_passing": False},
            Verdict.INCORRECT_DTYPE,
            "number 0",
        ),
        _rarely("def run(x, factor, y):\n    while True: pass\n", {}, Verdict.TIMEOUT, "no answer within"),
        (
            _WRITE_EVERYWHERE.format("struct.pack('<4sHHQq', b'KHR1', 4, 0, 1, 1)"),
            {},
            Verdict.REWARD_HACK,
            "forged an answer",
        ),
        _rarely(
            _WRITE_EVERYWHERE.format("b'hello'"),
            {},
            Verdict.REWARD_HACK,
            "5 bytes that are not a record",
        ),
    ],
)
def test_a_mistake_in_python_has_a_verdict(
    court: JudgeProcess, tmp_path: Path, source: str, spec: dict[str, bool], verdict: Verdict, reason_part: str
) -> None:
    solution = write_pytorch(tmp_path / "solution", source, **spec)
    answer = judge(court, write_problem(tmp_path), solution, max_judge_s=20.0 if "while True" in source else 120.0)
    assert answer.verdict is verdict, answer.reason
    assert reason_part in str(answer.reason)


@pytest.mark.slow
def test_a_crash_in_one_workload_does_not_change_verdicts_of_others(court: JudgeProcess, tmp_path: Path) -> None:
    source = KERNEL.replace("{\n", "{\n    if (n == 50000) __builtin_trap();\n", 1)
    problem = write_problem(tmp_path, sizes=(40_000, 50_000, 60_000))
    answer = judge(court, problem, write_cpp(tmp_path / "solution", source))
    assert [str(workload.verdict) for workload in answer.workloads] == ["PASSED", "RUNTIME_ERROR", "PASSED"]
    assert str(answer.reason).startswith("workload n50000: killed by SIG")
    assert answer.workloads[0].latency_us is not None
    assert answer.workloads[2].latency_us is None, "a solution that cannot pass is checked, not timed"


def test_parameters_returned_outputs_and_scalars_reach_python(court: JudgeProcess, tmp_path: Path) -> None:
    source = "def run(x, factor, *, KIND):\n    assert (KIND, factor) == ('fast', 1.5)\n    return {'y': x * factor}\n"
    solution = write_pytorch(tmp_path / "solution", source, destination_passing=False, params={"KIND": "fast"})
    answer = judge(court, write_problem(tmp_path), solution)
    assert answer.verdict is Verdict.PASSED, answer.reason


_TORCH_IS_MAPPED = """
#include <cstring>
#include <cstdio>
static bool torch_is_mapped() {
    char line[4096];
    bool seen = false;
    FILE* maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) seen |= strstr(line, "libtorch") != nullptr;
    if (maps) fclose(maps);
    return seen || !maps;
}
static const bool seen = torch_is_mapped();
"""


def test_compiled_code_runs_in_a_process_without_torch(court: JudgeProcess, tmp_path: Path) -> None:
    kernel = _TORCH_IS_MAPPED + KERNEL.replace("x[i] * (float)factor", "seen ? 0.0f : x[i] * (float)factor")
    problem = write_problem(tmp_path)
    assert kernel.count("seen ? ") == 1
    answer = judge(court, problem, write_cpp(tmp_path / "solution", kernel))
    assert answer.verdict is Verdict.PASSED, answer.reason


@pytest.mark.slow
@pytest.mark.serial
def test_a_short_call_is_reported_as_launch_bound(court: JudgeProcess, tmp_path: Path) -> None:
    answer = judge(court, write_problem(tmp_path, sizes=(16,)), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.trust is Trust.LAUNCH_BOUND


@pytest.mark.parametrize(
    ("reference", "reason_part"),
    [
        ("def run(x, factor):\n    raise KeyError('gone')\n", "gone"),
        _rarely("def run(x, factor):\n    return x[1:]\n", "declared"),
        _rarely("def run(x, factor):\n    return x.mul_(factor)\n", "changes its input `x` in place"),
    ],
)
def test_a_broken_reference_is_an_invalid_reference(
    court: JudgeProcess, tmp_path: Path, reference: str, reason_part: str
) -> None:
    answer = judge(court, write_problem(tmp_path, reference=reference), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.INVALID_REFERENCE
    assert reason_part in str(answer.reason)


def test_a_candidate_can_be_raced_against_the_problems_own_baseline(court: JudgeProcess, tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    write_pytorch(problem / "baseline", "import torch\ndef run(x, factor, y):\n    torch.mul(x, factor, out=y)\n")
    answer = judge(court, problem, write_cpp(tmp_path / "solution"), baseline={"n40000": "baseline"})
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.workloads[0].variant == "baseline"


def test_a_directory_without_a_solution_is_refused(court: JudgeProcess, tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(tmp_path / "solution", launch=[{"kernel": "x"}])
    answer = judge(court, problem, solution)
    assert answer.verdict is Verdict.COMPILE_ERROR
    assert "launch" in str(answer.reason)


@pytest.mark.slow
def test_a_bound_measured_on_a_busy_host_does_not_reject_a_solution(
    tmp_path: Path, judge_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stored figure is a hundredth of the correct one, as if the host had been busy during its measurement."""
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    hardware("cpu", cache_dir=judge_cache)
    (source,) = (judge_cache / "sol").iterdir()
    honest = json.loads(source.read_text())
    file = tmp_path / "cache" / "sol" / source.name
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({name: value if name == "cpu" else value / 100 for name, value in honest.items()}))
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as process:
        answer = judge(process, write_problem(tmp_path, sizes=(400_000,)), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert json.loads(file.read_text())["cached_read_gbs"] > 0.1 * honest["cached_read_gbs"]


@pytest.mark.slow
def test_baselines_are_measured_and_the_compiled_reference_can_be_raced(court: JudgeProcess, tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    write_pytorch(problem / "baseline", "import torch\ndef run(x, factor, y):\n    torch.mul(x, factor, out=y)\n")
    answer = judge(court, problem, None)
    assert answer.verdict is Verdict.PASSED
    times = answer.baselines["n40000"]
    assert set(times) == {"eager", "compile", "baseline"}
    assert all(value is not None and value > 1.0 for value in times.values()), answer.environment
    raced = judge(court, problem, write_cpp(tmp_path / "solution"), baseline={"n40000": "compile"})
    assert raced.verdict is Verdict.PASSED, raced.reason
    assert raced.workloads[0].variant == "compile"


def _against_itself(court: JudgeProcess, tmp_path: Path, times: int) -> list[tuple[float, float]]:
    """Return the intervals of one solution judged against itself."""
    problem = write_problem(tmp_path, sizes=(200_000,))
    write_cpp(problem / "baseline")
    solution = write_cpp(tmp_path / "solution")
    intervals = []
    for _ in range(times):
        answer = judge(court, problem, solution, baseline={"n200000": "baseline"}, half_width=0.02)
        assert answer.verdict is Verdict.PASSED, answer.reason
        interval = answer.workloads[0].speedup_ci95
        assert interval is not None
        intervals.append(interval)
    return intervals


@pytest.mark.slow
@pytest.mark.serial
def test_a_solution_is_as_fast_as_itself(court: JudgeProcess, tmp_path: Path) -> None:
    intervals = _against_itself(court, tmp_path / "first", 3)
    if sum(ci95_low <= 1.0 <= ci95_high for ci95_low, ci95_high in intervals) < 2:  # 1 % of honest runs
        intervals += _against_itself(court, tmp_path / "second", 6)
        assert sum(ci95_low <= 1.0 <= ci95_high for ci95_low, ci95_high in intervals) >= 6, intervals


@pytest.mark.slow
@pytest.mark.serial
def test_twenty_times_itself(court: JudgeProcess, tmp_path: Path) -> None:
    intervals = _against_itself(court, tmp_path, 20)
    assert sum(ci95_low <= 1.0 <= ci95_high for ci95_low, ci95_high in intervals) >= 16, intervals
    assert all((ci95_high - ci95_low) / 2 <= 0.2 for ci95_low, ci95_high in intervals), (
        "intervals are wider on a busy machine, up to a limit"
    )


@pytest.mark.parametrize(
    ("source", "reason_part"),
    [
        ("void scale() {}", "baseline/ is in cuda_cpp, which does not run on the device cpu"),
        ("", "baseline/ is malformed: "),
    ],
)
def test_a_baseline_that_cannot_run_is_an_invalid_reference(
    court: JudgeProcess, tmp_path: Path, source: str, reason_part: str
) -> None:
    problem = write_problem(tmp_path)
    write_cpp(problem / "baseline", source, language="cuda_cpp")
    answer = judge(court, problem, write_cpp(tmp_path / "solution"), baseline={"n40000": "baseline"})
    assert answer.verdict is Verdict.INVALID_REFERENCE
    assert reason_part in str(answer.reason)
