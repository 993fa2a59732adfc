from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_intervals
from benchmarks.gpu_intervals import PROBLEMS, Plan, Trial, eager_solution, measure, missing_trials
from benchmarks.measured_rows import MeasuredRow, append_row
from harness.formats.problems import load_problem
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.reference import load_reference
from harness.judge.version import judge_version
from harness.model.judging import (
    Cost,
    DeviceRecord,
    EnvironmentRecord,
    JudgeAnswer,
    JudgeRequest,
    Summary,
    WorkloadResult,
)
from harness.model.verdict import Verdict
from harness.runner.pytorch import load_function

NAMES = ("norm/a", "norm/b", "gemm/c", "gemm/d", "moe/e")


def trials(*names: str) -> list[Trial]:
    return [Trial(name, Path(), Path(), "eager", 0.01) for name in names]


def measured(file: Path, part: str, *names: str) -> None:
    for name in names:
        row = MeasuredRow(
            part=part, case=name, judge_version=judge_version(), busy=0, workloads=1, verdict="PASSED", judge_s=1.0
        )
        append_row(file, row)


def plan(file: Path, **settings: object) -> Plan:
    return Plan(file, file.parent, 3, 0.0, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["norm/a", "gemm/c", "gemm/d"]),
        ({"cases": "gemm/*"}, ["gemm/c", "gemm/d"]),
        ({"shard": (1, 2)}, ["norm/a", "gemm/c"]),
        ({"shard": (2, 2)}, ["gemm/d"]),
    ],
)
def test_references_are_judged_once_each_by_one_shard(
    settings: dict[str, object], expected: list[str], tmp_path: Path
) -> None:
    measured(tmp_path / "rows", "references", "norm/b", "moe/e")
    missing = missing_trials("references", trials(*NAMES), plan(tmp_path / "rows", **settings))
    assert [trial.case for trial in missing] == expected


def test_other_parts_go_on_where_the_file_ends(tmp_path: Path) -> None:
    measured(tmp_path / "rows", "sealed", "norm/a")
    missing = missing_trials("sealed", trials("norm/a", "norm/b"), plan(tmp_path / "rows"))
    assert [trial.case for trial in missing] == ["norm/b", "norm/a"]


@pytest.mark.parametrize("key", ["attention/kv_cache_write", "rope/rope_kv_cache_write"])
def test_a_reference_that_updates_inputs_becomes_a_solution_with_the_same_outputs(tmp_path: Path, key: str) -> None:
    problem = load_problem(PROBLEMS / key)
    solution = eager_solution(tmp_path / "solution", PROBLEMS / key)
    solve = load_function(str(solution / "kernel.py"), "solve")
    reference = load_reference(problem)
    smallest = min(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
    inputs = InputSource(problem, reference=reference, seed=1).draw(smallest)
    expected = reference.outputs(list(inputs.values()))
    updates = problem.definition.updates
    outputs = {
        name: torch.as_tensor(inputs[updates[name]]).clone() if name in updates else torch.zeros_like(value)
        for name, value in expected.items()
    }
    solve(*inputs.values(), *outputs.values())
    for name, value in expected.items():
        assert torch.equal(outputs[name].view(torch.uint8), value.view(torch.uint8)), name


DEADLINE_S = 60.0


class AnsweringJudge:
    """Stands in for a judge on a GPU: it answers PASSED after `before_answer`."""

    def __init__(self, before_answer: Callable[[], None]) -> None:
        self.before_answer = before_answer
        self.request_ids: list[str] = []

    def ask(self, request: JudgeRequest, progress: object) -> JudgeAnswer:
        del progress
        self.before_answer()
        self.request_ids.append(request.id)
        return JudgeAnswer(
            id=request.id,
            verdict=Verdict.PASSED,
            summary=Summary(passed=1, of=1),
            cost=Cost(),
            environment=EnvironmentRecord(harness="", judge="", python="", torch="", sandbox="none"),
            workloads=(WorkloadResult(uuid="w", verdict=Verdict.PASSED),),
            device=DeviceRecord(name="", id=""),
        )


def measured_cases(file: Path) -> set[str]:
    return {row.case for row in plan(file).rows("references")}


def judged_by(judges: dict[str, AnsweringJudge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Judge five references with the given judges, and return the file of results."""
    directory = PROBLEMS / "starter" / "rmsnorm_h4096"
    five = [Trial(name, directory, directory / "solutions" / "cpu", "eager", 0.01) for name in NAMES]
    monkeypatch.setitem(gpu_intervals.PARTS, "references", lambda _: five)
    file = tmp_path / "rows"
    until = time.monotonic() + DEADLINE_S
    measure(lambda device: nullcontext(judges[device]), list(judges), ["references"], Plan(file, tmp_path, 3, until))  # type: ignore[arg-type]
    return file


def test_a_judge_that_is_free_takes_the_next_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_has_one, four_answers = threading.Event(), threading.Semaphore(0)

    def wait_for_the_slow() -> None:
        assert slow_has_one.wait(DEADLINE_S)
        four_answers.release()

    def wait_for_four() -> None:
        slow_has_one.set()
        for _ in range(4):
            assert four_answers.acquire(timeout=DEADLINE_S)

    slow, quick = AnsweringJudge(wait_for_four), AnsweringJudge(wait_for_the_slow)
    file = judged_by({"cuda:0": slow, "cuda:1": quick}, tmp_path, monkeypatch)
    assert (len(slow.request_ids), len(quick.request_ids)) == (1, 4)
    assert measured_cases(file) == set(NAMES)


def test_the_others_go_on_when_a_judge_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ConnectionError("the GPU is lost")

    def wait_for_failure() -> None:
        assert failed.wait(DEADLINE_S)

    judges = {"cuda:0": AnsweringJudge(fail), "cuda:1": AnsweringJudge(wait_for_failure)}
    with pytest.raises(ConnectionError, match="the GPU is lost"):
        judged_by(judges, tmp_path, monkeypatch)
    assert len(measured_cases(tmp_path / "rows")) == 4
