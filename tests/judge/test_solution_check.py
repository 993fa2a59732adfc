"""Checks by a real judge: build and correctness without timing, alone and between the blocks of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.formats.problems import problem_digest
from harness.model.judging import CheckAnswer, CheckRequest, JudgeProgress, JudgeRequest
from harness.model.verdict import Verdict
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import KERNEL, write_cpp, write_problem

pytestmark = pytest.mark.xdist_group("judge")


def order(problem: Path, solution: Path, identity: str = "c1", **settings: Any) -> CheckRequest:
    return CheckRequest(
        id=identity,
        problem="/".join(problem.parts[-2:]),
        problem_dir=str(problem),
        problem_digest=problem_digest(problem),
        solution_dir=str(solution),
        **settings,
    )


def evaluation(problem: Path, solution: Path, half_width: float) -> JudgeRequest:
    return JudgeRequest(
        id="1",
        kind="evaluation",
        problem="made/scale",
        problem_dir=str(problem),
        problem_digest=problem_digest(problem),
        solution_dir=str(solution),
        half_width=half_width,
        max_judge_s=150.0,
    )


def test_a_right_solution_passes_on_every_workload_and_shows_warnings_and_code(
    court: JudgeProcess, tmp_path: Path
) -> None:
    problem = write_problem(tmp_path, sizes=(1000, 17))
    source = KERNEL.replace("for (", "int forgotten; for (")
    answer = court.check(order(problem, write_cpp(tmp_path / "solution", source), show="assembly"))
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert [work.uuid for work in answer.workloads] == ["n1000", "n17"]
    assert all(work.max_abs_error is not None and work.matched == 1.0 for work in answer.workloads)
    assert any("unused variable" in line and "kernel.cpp" in line for line in answer.build.warnings)
    assert answer.build.code.startswith("0")
    assert "<scale>:" in answer.build.code
    assert "mul" in answer.build.code
    cached_answer = court.check(order(problem, tmp_path / "solution", "c2"))
    assert cached_answer.build.warnings == answer.build.warnings, "a build from the cache has its warnings too"


@pytest.mark.parametrize(
    ("source", "verdict", "reason_part"),
    [
        ("#error no\n" + KERNEL, Verdict.COMPILE_ERROR, "kernel.cpp:1:2: error: #error no"),
        (KERNEL.replace("i < n", "i < n / 16 * 16"), Verdict.INCORRECT_NUMERICAL, "beyond the last multiple of"),
        (
            KERNEL.replace('extern "C"', 'static float kept;\nextern "C"').replace(
                "y[i] = x", "kept += 1, y[i] = kept * x"
            ),
            Verdict.INCORRECT_NUMERICAL,
            "two calls with equal inputs give different outputs",
        ),
    ],
)
def test_a_wrong_solution_has_its_verdict_and_a_hint_at_the_mistake(
    court: JudgeProcess, tmp_path: Path, source: str, verdict: Verdict, reason_part: str
) -> None:
    answer = court.check(order(write_problem(tmp_path, sizes=(1003,)), write_cpp(tmp_path / "solution", source)))
    assert answer.verdict is verdict, answer.reason
    assert reason_part in str(answer.reason)


def test_an_invalid_solution_has_an_answer(court: JudgeProcess, tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    (tmp_path / "empty").mkdir()
    answer = court.check(order(problem, tmp_path / "empty"))
    assert answer.verdict is Verdict.COMPILE_ERROR
    assert "solution.yaml" in str(answer.reason)
    crash = write_cpp(tmp_path / "crash", 'extern "C" void scale() { *(volatile int*)8 = 1; }')
    assert court.check(order(problem, crash)).verdict is Verdict.RUNTIME_ERROR


@pytest.mark.slow
def test_checks_are_answered_during_an_evaluation_which_still_passes(court: JudgeProcess, tmp_path: Path) -> None:
    """Check a wrong solution, and one of a problem with larger memory, before the second workload is timed."""
    problem = write_problem(tmp_path / "a", sizes=(40_000, 999))
    large_problem = write_problem(tmp_path / "b", sizes=(5_000_000,))
    solution = write_cpp(tmp_path / "solution")
    wrong = write_cpp(tmp_path / "wrong", KERNEL.replace("i < n", "i < n - 1"))
    waiting = [order(problem, wrong, "wrong"), order(large_problem, solution, "large")]
    answers: list[CheckAnswer] = []
    stages: list[str] = []

    def progress(event: JudgeProgress) -> None:
        stages.append(event.stage)
        if event.stage == "workload" and waiting:
            court.send_check(waiting.pop(0))

    def checked(answer: CheckAnswer) -> None:
        answers.append(answer)
        if waiting:
            court.send_check(waiting.pop(0))

    request = evaluation(problem, solution, half_width=1e-4)
    evaluated = court.ask(request, progress, checked)
    assert evaluated.verdict is Verdict.PASSED, evaluated.reason
    assert {answer.id: answer.verdict for answer in answers} == {
        "large": Verdict.PASSED,
        "wrong": Verdict.INCORRECT_NUMERICAL,
    }, "both checks are answered during the evaluation"


@pytest.mark.slow
def test_checks_that_are_left_when_an_evaluation_ends_are_answered_then(court: JudgeProcess, tmp_path: Path) -> None:
    problem, solution = write_problem(tmp_path), write_cpp(tmp_path / "solution")
    answered_ids: list[str] = []
    names = [f"c{number}" for number in range(6)]
    request = evaluation(problem, solution, half_width=0.5)

    def progress(event: JudgeProgress) -> None:
        if event.stage == "build":
            for name in names:
                court.send_check(order(problem, solution, name))

    assert court.ask(request, progress, lambda answer: answered_ids.append(answer.id)).verdict is Verdict.PASSED
    while len(answered_ids) < len(names):
        answered_ids.append(court.next_checked().id)
    assert answered_ids == names, "answers are in the order of the requests"
