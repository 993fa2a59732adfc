"""`harness baseline PROBLEM --make`: an agent with a budget optimises the PyTorch code that candidates compete with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.cli.display.output import echo
from harness.cli.process_commands import log_to_file, stop_on_signals
from harness.errors import AnswerIsNo
from harness.model.judging import JudgeAnswer
from harness.model.problem import Problem
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace

_USD, _MINUTES, _EVALUATIONS = 10.0, 120.0, 30


def make(
    workspace: Workspace,
    problem: Problem,
    judge: Callable[[Path], JudgeAnswer],
    *,
    target: str,
    usd: float | None,
    minutes: float | None,
    evaluations: int | None,
) -> None:
    """Run the session and install its best solution as `baseline/` of the problem.

    Args:
        workspace: the workspace.
        problem: the problem.
        judge: evaluates a solution directory.
        target: such as `cpu` or `h200`.
        usd: limit of the session in USD; None for 10.
        minutes: limit of the session; None for 120.
        evaluations: limit of the session; None for 30.

    Raises:
        AnswerIsNo: no submission passed.
    """
    from harness.agents.baseline import install_baseline, make_baseline
    from harness.agents.kinds import check_claude
    from harness.agents.session import Event, Text, ToolUse

    config = load_config(
        workspace,
        {
            "agent.kind": "claude",
            "agent.per_session.usd": usd or _USD,
            "agent.per_session.minutes": minutes or _MINUTES,
            "agent.per_session.evaluations": evaluations or _EVALUATIONS,
        },
    )
    check_claude(config)
    stop, _ = stop_on_signals()
    log_to_file(workspace, "baseline")

    def on_event(event: Event) -> None:
        if isinstance(event, Text):
            echo(f"  {event.text}")
        elif isinstance(event, ToolUse):
            echo(f"  {event.name} {event.summary}")

    result = make_baseline(workspace, config, problem, judge, target=target, stop=stop, on_event=on_event)
    echo(f"ended: {result.end.reason} {result.end.text}; {result.submissions} submissions, {result.usd:.2f} USD")
    if result.best is None:
        raise AnswerIsNo("no submission passed: baseline/ is unchanged", where=problem.key)
    directory = install_baseline(problem, result)
    echo(f"{directory}: {result.speedup:.3f} times as fast as the fastest baseline before; review it and commit it")
