"""`harness profile`: hardware counters of a solution that passed, and a sentence that names the bottleneck."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.display.output import echo, echo_json, json_option
from harness.cli.evaluate import (
    cache_of,
    chosen_device,
    clear_progress,
    first_device,
    judge_request,
    sandbox_option,
    show_progress,
    workspace_near,
)

if TYPE_CHECKING:
    from harness.model.config import SandboxKind
    from harness.model.counters import CounterReport
    from harness.model.problem import Problem
    from harness.workspace.blocking_judge import JudgeProcess

_QUICK_HALF_WIDTH = 0.1
"""Half-width for the evaluation before a profile: only its verdict matters, not its speed-up."""


@click.command()
@click.argument("path_or_commit", metavar="SOLUTION")
@click.option("--problem", "problem_name", metavar="P", help="The problem: its key, or its directory.")
@click.option(
    "--workload",
    metavar="UUID",
    help="The workload, by the beginning of its uuid; the default is the one with the most data.",
)
@click.option("--device", metavar="DEVICE", help="cuda, cuda:1; the default is that of `harness start`.")
@sandbox_option
@json_option
def profile(
    path_or_commit: str,
    *,
    problem_name: str | None,
    workload: str | None,
    device: str | None,
    sandbox: SandboxKind,
    as_json: bool,
) -> None:
    """Read the hardware counters of a solution that PASSED; a solution without a verdict is judged first.

    Nsight Compute reads the counters of the harness's launcher, for language cuda and for Triton solutions whose
    launches can be recorded. No verdict uses them.
    """
    from harness.cli.targets import candidate
    from harness.errors import AnswerIsNo
    from harness.model.counters import report_lines
    from harness.sol.hardware import CPU
    from harness.workspace.blocking_judge import judge_process

    workspace = workspace_near(Path(path_or_commit))
    _, chosen = chosen_device(workspace, device)
    if chosen.target == CPU:
        raise AnswerIsNo("no counters: no hardware counters are read on the target cpu")
    with (
        candidate(path_or_commit, problem_name, None, target=chosen.target, workspace=workspace) as named,
        judge_process(first_device(chosen), cache_of(workspace), sandbox) as judge,
    ):
        report = _report(judge, *named, workload)
    clear_progress()
    if as_json:
        echo_json(report.model_dump_json(indent=2))
    else:
        for line in report_lines(report):
            echo(line)
    if not report.kernels:
        raise AnswerIsNo(f"no counters: {report.reason}")


def _report(judge: JudgeProcess, problem: Problem, solution_dir: Path, workload: str | None) -> CounterReport:
    """Return the counters; a solution without a verdict is first judged against the eager reference.

    Raises:
        AnswerIsNo: the solution does not pass.
    """
    from harness.errors import AnswerIsNo, HarnessError

    settings = {"kind": "profile", "workload": workload}
    for is_judged in (False, True):
        answer = judge.ask(judge_request(problem, solution_dir, **settings), show_progress)
        report = answer.counters
        if report is None:
            raise HarnessError(f"the judge cannot profile: {answer.verdict}: {answer.reason}", where=problem.key)
        if not report.needs_verdict or is_judged:
            return report
        against = dict.fromkeys((workload_of_problem.uuid for workload_of_problem in problem.workloads), "eager")
        request = judge_request(problem, solution_dir, baseline=against, half_width=_QUICK_HALF_WIDTH)
        judged = judge.ask(request, show_progress)
        if judged.verdict != "PASSED":
            raise AnswerIsNo(f"only a solution that passes can be profiled: {judged.verdict}: {judged.reason}")
    raise AssertionError("unreachable")
