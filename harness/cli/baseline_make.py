"""`harness baseline PROBLEM --make`: a budgeted agent optimises the PyTorch that candidates are measured against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.display.output import echo

if TYPE_CHECKING:
    from harness.model.judging import JudgeAnswer
    from harness.model.problem import Problem
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
    """Run the session and keep its best as the problem's baseline/.

    Raises:
        AnswerIsNo: nothing that it submitted passed.
    """
    from harness.agents.baseline import keep_baseline, make_baseline
    from harness.agents.kinds import check_claude
    from harness.agents.session import Event, Text, ToolUse
    from harness.cli.process_commands import log_to_file, stop_on_signals
    from harness.errors import AnswerIsNo
    from harness.workspace.configuration import load_config

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
    stop = stop_on_signals()
    log_to_file(workspace, "baseline")

    def heed(event: Event) -> None:
        if isinstance(event, Text):
            echo(f"  {event.text}")
        elif isinstance(event, ToolUse):
            echo(f"  {event.name} {event.summary}")

    made = make_baseline(workspace, config, problem, judge, target=target, stop=stop, heed=heed)
    echo(f"ended: {made.end.reason} {made.end.text}; {made.tried} submissions, {made.usd:.2f} USD")
    if made.best is None:
        raise AnswerIsNo("nothing passed: baseline/ is as it was", where=problem.key)
    place = keep_baseline(problem, made)
    echo(f"{place}: {made.speedup:.3f} times as fast as the fastest before it; look at it and commit it")
