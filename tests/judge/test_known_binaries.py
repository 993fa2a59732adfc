"""The hash of compiled code and launches, and evaluations of code with an earlier measurement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.judge import evaluation
from harness.judge.build import cuda_builder
from harness.judge.evaluation import evaluate
from harness.judge.sides import Staged, stage_solution
from harness.judge.workload_race import Task
from harness.model.judging import DeviceRecord, EnvironmentRecord, JudgeAnswer, JudgeRequest
from harness.model.problem import Problem
from harness.model.verdict import Verdict
from harness.runner.messages import Program
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import judge, write_cpp, write_problem
from tests.judge.problem_in_memory import problem, tensor

pytestmark = [pytest.mark.xdist_group("judge"), pytest.mark.usefixtures("own_locks")]

SEALED = 'extern "C" __global__ void run(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * AXIS_n; }\n'


@pytest.fixture
def sample_problem() -> Problem:
    reference = "def run(x):\n    return x\n"
    return problem({"x": tensor("float32", "n")}, {"y": tensor("float32", "n")}, reference, {"n": 7})


def write_sealed(tmp_path: Path, source: str = SEALED, grid: int = 1) -> Path:
    directory = tmp_path / "solution"
    directory.mkdir(exist_ok=True)
    (directory / "kernel.cu").write_text(source)
    launch = {"kernel": "run", "grid": [grid], "block": ["n"], "args": ["x", "y"]}
    spec = {"language": "cuda", "entry": "kernel.cu::run", "launch": [launch]}
    (directory / "solution.yaml").write_text(yaml.safe_dump(spec))
    return directory


def staged(sample_problem: Problem, tmp_path: Path, source: str = SEALED, grid: int = 1) -> Staged:
    solution = load_solution(write_sealed(tmp_path, source, grid))
    return stage_solution(sample_problem, solution, cache_dir=tmp_path / "cache", sandbox="bubblewrap")


def test_the_hash_depends_on_launches_but_not_on_formatting_and_names(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_builder, "architecture", lambda: "sm_90a")
    first = staged(sample_problem, tmp_path).binary
    assert first is not None
    renamed = SEALED.replace("*x", "*input").replace("float* x", "float* input").replace("x[thr", "input[thr")
    assert staged(sample_problem, tmp_path, f"// a comment\n{renamed}\n").binary == first
    assert staged(sample_problem, tmp_path, grid=2).binary != first
    assert staged(sample_problem, tmp_path, SEALED.replace("AXIS_n", "2")).binary != first


def resources(tmp_path: Path) -> Any:
    """Return a judge whose device starts no process, because known code needs none."""
    device = SimpleNamespace(
        hardware=SimpleNamespace(languages=(), target="h200"),
        runners=SimpleNamespace(start_standby=lambda: None),
        clock_for=lambda **_: None,
        record=lambda: DeviceRecord(name="d", id="0"),
    )
    environment = EnvironmentRecord(harness="1", judge="j", python="3", torch="2", sandbox="bubblewrap")
    return SimpleNamespace(
        device=device,
        environment=environment,
        cache_dir=tmp_path,
        sandbox="none",
    )


@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.INCORRECT_NUMERICAL])
def test_a_sealed_candidate_whose_code_is_known_is_only_built(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    directory = write_sealed(tmp_path)

    def run(plans: dict[str, dict[str, Any]]) -> JudgeAnswer:
        build = Staged(lambda _: Program("cuda"), 1.0, plans, binary="sha256:b")
        monkeypatch.setattr(evaluation, "stage_solution", lambda *_, **__: build)
        request = JudgeRequest(
            id="1", kind="evaluation", problem="t/one", problem_dir="", problem_digest="",
            solution_dir=str(directory), known_binaries={"sha256:b": verdict},
        )  # fmt: skip
        unused: Any = SimpleNamespace()
        task = Task(resources(tmp_path), request, sample_problem, unused, unused, unused, lambda _: None)
        return evaluate(task).answer

    answer = run({"n": {}})
    assert (answer.verdict, answer.measured, answer.binary, answer.workloads) == (verdict, False, "sha256:b", ())
    assert answer.cost.judge_s == 0
    with pytest.raises(AttributeError, match="opponents"):  # host code is timed, and this judge has no baselines
        run({})


@pytest.mark.slow
def test_host_code_is_measured_although_its_binary_is_known(court: JudgeProcess, tmp_path: Path) -> None:
    directory, solution = write_problem(tmp_path), write_cpp(tmp_path / "solution")
    built = stage_solution(
        load_problem(directory), load_solution(solution), cache_dir=tmp_path / "cache", sandbox="bubblewrap"
    )
    assert built.binary is not None
    answer = judge(court, directory, solution, known_binaries={built.binary: Verdict.PASSED})
    assert (answer.binary, answer.measured, len(answer.workloads)) == (built.binary, True, 1)
