"""The confirmation before a run of paid agents without a limit: a question on a terminal, else a warning."""

from __future__ import annotations

import sys

import click

from harness.cli.display.output import echo
from harness.errors import ConfigurationError
from harness.model.config import Budget, Config
from harness.run_end import Limits

_PAID = {"claude", "command"}
_FIX = "harness start --max-usd 5, or agent: {overall: {usd: 100}} in harness.yaml"


def ask_for_a_limit(config: Config, limits: Limits) -> None:
    """Ask for confirmation, or warn, if paid agents have no limit of the run or its workers.

    Args:
        config: sets the kinds of agents and their budgets.
        limits: limits of the command line.

    Raises:
        ConfigurationError: the user declined to start without a limit.
    """
    paid = config.agent.kind in _PAID or config.planner.kind == "claude"
    of_command_line = (limits.max_evaluations, limits.max_minutes, limits.max_usd)
    if not paid or any(of_command_line) or _limits(config.agent.overall) or _limits(config.agent.per_worker):
        return
    agents = f"agents of kind {config.agent.kind}" if config.agent.kind in _PAID else "a planner of kind claude"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        echo(f"harness: warning: {agents} run without a limit on what they spend. Set one: {_FIX}", err=True)
        return
    if not click.confirm(f"No limit is set on what {agents} spend. Start without one?", err=True):
        raise ConfigurationError("not started: no limit is set", where="--max-usd", remedy=_FIX)


def _limits(budget: Budget) -> bool:
    return any(value is not None for value in budget.model_dump().values())
