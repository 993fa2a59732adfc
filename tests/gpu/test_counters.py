"""Counters on a GPU: a memory-bound, a compute-bound and a Triton kernel, compared with direct runs of ncu.

`python -m pytest tests/gpu/test_counters.py -s` prints each report. If the driver restricts counters to administrators,
the tests show that the report states this.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.judge.counters.ncu import PROFILE_S, find_ncu
from harness.judge.counters.replays import replay_key
from harness.model.config import SandboxKind
from harness.model.counters import CounterReport, report_lines, resource_lines
from harness.model.judging import JudgeAnswer, JudgeRequest
from harness.workspace.blocking_judge import JudgeProcess
from tests.gpu.cases import write_problem as write_attacked
from tests.gpu.test_recording import RECORDED
from tests.judge import courtroom

ROOT = Path(__file__).parents[2]
GEMM = ROOT / "problems/gemm/bf16_n4096_k4096"
ELEMENTS, ROWS = 1 << 26, 1 << 16
"""Rows of the memory-bound kernels: 256 MB of input, several times the size of an L2."""
AGREE = 0.03
TIME = "gpu__time_duration.sum"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS = "launch__registers_per_thread"
DIRECT = (TIME, DRAM, SM, WARPS, REGISTERS)
NO_PERMISSION = "the driver does not permit this user to read counters (ERR_NVGPUCTRPERM)"
SCALE = """
extern "C" __global__ void scale(const float4* x, float factor, float4* y, long long quads) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= quads) return;
    float4 v = x[at];
    v.x *= factor; v.y *= factor; v.z *= factor; v.w *= factor;
    y[at] = v;
}
"""
PLAN = """
language: cuda
entry: kernel.cu::scale
launch:
  - {kernel: scale, grid: [(n // 4 + 255) // 256], block: [256], args: [x, factor, y, {i64: n // 4}]}
"""


@dataclass(frozen=True)
class ProfiledCase:
    """A solution, and a workload of its problem."""

    problem: Path
    solution: Path
    workload: str
    direct: tuple[str, ...]
    """Arguments of the direct run; empty: those of a replay."""


@dataclass
class ProfiledRun:
    """A judge with a kind of sandbox, and its answers."""

    judge: JudgeProcess
    cache: Path
    sandbox: SandboxKind

    def evaluate(self, case: ProfiledCase) -> JudgeAnswer:
        problem = load_problem(case.problem)
        against = dict.fromkeys((workload.uuid for workload in problem.workloads), "eager")
        return self._ask(case, kind="evaluation", baseline=against, half_width=0.2)

    def profile(self, case: ProfiledCase) -> CounterReport:
        report = self._ask(case, kind="profile", workload=case.workload).counters
        assert report is not None
        return report

    def _ask(self, case: ProfiledCase, **settings: object) -> JudgeAnswer:
        problem = load_problem(case.problem)
        request = JudgeRequest.model_validate(
            {
                "id": "1",
                "problem": problem.key,
                "problem_dir": str(problem.directory),
                "problem_digest": problem.digest,
                "solution_dir": str(case.solution),
                "max_judge_s": 120.0,
                **settings,
            }
        )
        return self.judge.ask(request, lambda _: None)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProfiledCase]:
    directory = tmp_path_factory.mktemp("profiled")
    scale = courtroom.write_problem(directory, sizes=(ELEMENTS,))
    solution = directory / "scale"
    solution.mkdir()
    (solution / "kernel.cu").write_text(SCALE)
    (solution / "solution.yaml").write_text(PLAN)
    # Only the largest workload of the shipped product, to save time.
    gemm = directory / "gemm" / GEMM.name
    shutil.copytree(GEMM, gemm)
    lines = (gemm / "workload.jsonl").read_text().splitlines()
    largest = max(lines, key=lambda line: int(json.loads(line)["axes"]["m"]))
    (gemm / "workload.jsonl").write_text(largest + "\n")
    norm = write_attacked(directory, "norm")
    line = json.loads((norm / "workload.jsonl").read_text())
    line |= {"uuid": f"norm-{ROWS}", "axes": {"M": ROWS}}  # more than L2 holds, so that the writes reach the memory
    (norm / "workload.jsonl").write_text(json.dumps(line) + "\n")
    recorded = RECORDED[0][0].write(directory / "recorded", {})
    return {
        "memory": ProfiledCase(scale, solution, f"n{ELEMENTS}", ()),
        "compute": ProfiledCase(gemm, gemm / "solutions/h200", json.loads(largest)["uuid"], ()),
        "triton": ProfiledCase(norm, recorded, f"norm-{ROWS}", (str(recorded / "kernel.py"), str(ROWS))),
    }


@pytest.fixture(scope="module", params=["none", "bubblewrap"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfiledRun]:
    directory = tmp_path_factory.mktemp("counters")
    with courtroom.judge_with_own_locks("cuda", directory, request.param) as judge:
        yield ProfiledRun(judge, directory / "cache", request.param)


def _show(text: str) -> None:
    """Print a text, which `-s` shows."""
    sys.stdout.write(f"{text}\n")


def _restricted() -> bool:
    """Return true if the driver restricts counters to administrators."""
    file = Path("/proc/driver/nvidia/params")
    return "RmProfilingAdminOnly: 1" in file.read_text() if file.is_file() else True


def _may_be_refused(report: CounterReport) -> bool:
    """Return true if the report has no counters; assert that the reason is the missing permission, which is missing."""
    if report.kernels:
        return False
    assert report.reason == NO_PERMISSION, (report.reason, report.fix)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in (report.fix or "")
    assert _restricted()
    return True


def _direct(run: ProfiledRun, case: ProfiledCase, tmp_path: Path) -> dict[str, float]:
    """Return the metrics of one launch from a direct run of ncu."""
    arguments = case.direct
    if not arguments:
        key = replay_key(load_problem(case.problem), load_solution(case.solution), run.judge.ready.device.name)
        arguments = (str(run.cache / "replays" / key), case.workload)
    log = tmp_path / "direct.csv"
    command = [
        str(find_ncu()), "--profile-from-start", "off", "--cache-control", "all", "--clock-control", "none", "--csv",
        "--page", "raw", "--print-units", "base", "--metrics", ",".join(DIRECT), "--log-file", str(log),
        sys.executable, "-m", "tests.gpu.direct_counters", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    text = log.read_text() if log.is_file() else ""
    rows = list(csv.reader(line for line in text.splitlines() if not line.startswith("==")))
    assert len(rows) >= 3, text[-2000:] + done.stderr[-2000:]
    return {name: float(rows[2][rows[0].index(name)].replace(",", "")) for name in DIRECT}


@pytest.mark.parametrize("name", ["memory", "compute", "triton"])
def test_counters_agree_with_a_direct_run(
    name: str, run: ProfiledRun, cases: dict[str, ProfiledCase], tmp_path: Path
) -> None:
    case = cases[name]
    before = run.profile(case)
    assert before.needs_verdict, "a solution is profiled only after it has passed"
    answer = run.evaluate(case)
    assert answer.verdict == "PASSED", answer.reason
    assert answer.counters is None
    assert answer.resources
    assert all(resource.registers > 0 for resource in answer.resources)
    begin = time.monotonic()
    report = run.profile(case)
    took = time.monotonic() - begin
    _show("\n".join(["", *resource_lines(answer.resources), *report_lines(report), f"took {took:.1f} s"]))
    assert report.cold_us is not None
    assert report.warm_us is not None
    judged_us = answer.workloads[0].latency_us
    assert report.cold_us == pytest.approx(judged_us, rel=0.1)
    assert report.warm_us < 1.1 * report.cold_us
    if _may_be_refused(report):
        return
    assert report.took_s < PROFILE_S + 10
    (kernel,) = report.kernels
    assert kernel.dram_share is not None
    assert kernel.compute_share is not None
    assert kernel.occupancy is not None
    assert kernel.l2_hit_share is not None
    assert kernel.bank_conflicts is not None
    assert kernel.occupancy_limits
    assert kernel.stalls
    assert kernel.sentence
    if name == "compute":
        assert kernel.tensor_share is not None
        assert kernel.tensor_share > max(0.4, kernel.dram_share), "a product of 4096 x 4096 has busy tensor cores"
        assert kernel.bottleneck != "memory bandwidth"
    else:  # the output of the small norm of Triton stays in L2 until the kernel ends
        expected = {"memory bandwidth"} if name == "memory" else {"memory bandwidth", "L2"}
        assert kernel.bottleneck in expected, kernel.sentence
        assert kernel.tensor_share in (None, 0.0)
    if run.sandbox == "none":  # the comparison is the same for both sandboxes
        direct = _direct(run, case, tmp_path)
        _show(json.dumps(direct))
        assert kernel.registers == direct[REGISTERS]
        assert kernel.dram_share == pytest.approx(direct[DRAM] / 100, rel=AGREE, abs=0.005)
        assert kernel.compute_share == pytest.approx(direct[SM] / 100, rel=AGREE, abs=0.005)
        assert kernel.occupancy == pytest.approx(direct[WARPS] / 100, rel=AGREE, abs=0.005)
        assert kernel.time_us == pytest.approx(direct[TIME] / 1e3, rel=AGREE)


def test_the_command_judges_first_and_prints_the_sentence(cases: dict[str, ProfiledCase], tmp_path: Path) -> None:
    case = cases["memory"]
    command = [sys.executable, "-m", "harness", "profile", str(case.solution), "--problem", str(case.problem)]
    command += ["--device", "cuda", "--sandbox", "none"]
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HARNESS_LOCK_DIR": str(tmp_path / "locks"),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    _show(done.stdout)
    if done.returncode == 1:
        assert NO_PERMISSION in done.stdout + done.stderr
        assert _restricted()
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert "memory bandwidth is the limit" in done.stdout


def test_an_evaluation_after_a_profile_is_undisturbed(run: ProfiledRun, cases: dict[str, ProfiledCase]) -> None:
    case = cases["memory"]
    first = run.evaluate(case)
    run.profile(case)
    second = run.evaluate(case)
    assert first.verdict == second.verdict == "PASSED"
    before, after = first.workloads[0].latency_us, second.workloads[0].latency_us
    assert before is not None
    assert after == pytest.approx(before, rel=0.05)
