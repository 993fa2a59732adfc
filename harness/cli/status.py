"""`harness status`: processes, standings, recent gains and cost of a run in one screen."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import click

from harness.cli.costs import cost_rows, print_costs
from harness.cli.display.output import echo, echo_json, json_option
from harness.cli.display.standings import print_standings
from harness.cli.display.status_lines import run_standings, running_lines, today_lines
from harness.cli.merge_commands import opened
from harness.cli.watch import watch_status
from harness.ledger.accounts import all_accounts
from harness.ledger.standings import Standing
from harness.ledger.standings_table import for_scripts, outdated_note, totals, weakness_notes
from harness.model.process_status import DaemonStatus, ProcessStatus
from harness.report.merging import main_branch, pick_remote
from harness.report.today import today
from harness.workspace.status import running_processes

_PATIENCE_S = 0.2
"""While another process refreshes the index for longer, the standings shown are those of a moment ago."""


@click.command()
@click.option("--run", metavar="NAME", help="The run to show; by default harness.yaml's.")
@click.option("--all", "show_all", is_flag=True, help="Show all problems, also if they exceed the screen.")
@click.option("--costs", is_flag=True, help="Show only the agents' usage: money, tokens, turns, evaluations.")
@click.option("--watch", is_flag=True, help="Update the screen, with the speed-ups over time. Ctrl-C ends it.")
@json_option
def status(*, run: str | None, show_all: bool, costs: bool, watch: bool, as_json: bool) -> None:
    """Show processes, standings, gains since yesterday, stuck problems, cost, and what needs your attention."""
    if watch:
        watch_status(run)
        return
    if costs:
        _costs(run, as_json=as_json)
        return

    with opened(patience_s=_PATIENCE_S) as (workspace, config, repo, index):
        run = run or config.run
        base = main_branch(repo, config.coordination_branch, pick_remote(repo, None))
        shown = [
            (target, table, today(repo, index, config, table, run=run, target=target or "cpu", base=base))
            for target, table in run_standings(workspace, config, index, run)
        ]
        processes = running_processes(workspace)
        sentences = repo.checkout_state(config.coordination_branch)
    if as_json:
        problems = [{"target": target, **for_scripts(standing)} for target, table, _ in shown for standing in table]
        days = [{"target": target, **day.for_scripts()} for target, _, day in shown]
        running = {name: _for_scripts(status) for name, status in processes.items()}
        document = {"run": run, "problems": problems, "today": days, "running": running, "checkout": sentences}
        echo_json(json.dumps(document, indent=2, default=str))
        return
    for target, table, day in shown:
        echo(f"run {run}" + (f", target {target}" if target else ""), bold=True)
        lines = [*running_lines(processes), *today_lines(day), *sentences]
        _print_table(table, max_rows=None if show_all else _max_rows(len(lines), len(shown)))
        for line in lines:
            echo(line)


def _max_rows(lines: int, tables: int) -> int | None:
    """Return the number of rows of each table that fit on the screen; None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return max(5, (shutil.get_terminal_size().lines - lines - 3) // tables - 5)


def _print_table(table: tuple[Standing, ...], *, max_rows: int | None) -> None:
    shown = list(table)
    if max_rows is not None and len(table) > max_rows:  # show the problems with the newest entries, in order of names
        newest = sorted(table, key=lambda standing: standing.last_at or "", reverse=True)[:max_rows]
        shown = [standing for standing in table if standing in newest]
    if shown:
        print_standings(shown)
    else:
        echo("there are no problems: `harness problems import` adds some")
    if len(shown) < len(table):
        echo(f"… and {len(table) - len(shown)} more: `harness status --all`")
    for line in [totals(table), *outdated_note(table), *weakness_notes(table)] if shown else []:
        echo(line)


def _costs(run: str | None, *, as_json: bool) -> None:
    with opened() as (workspace, config, repo, index):
        name = run or config.run
        every_account = all_accounts(workspace, repo, config.coordination_branch)
        accounts = [account for account in every_account if account.run == name]
        tables = [standing for _, table in run_standings(workspace, config, index, name) for standing in table]
    rows = cost_rows(accounts, tables)
    if as_json:
        echo_json(json.dumps({"run": name, **rows}, indent=2))
    else:
        print_costs(rows)


def _for_scripts(status: ProcessStatus) -> dict[str, Any]:
    fields = status.model_dump(mode="json", exclude={"format", "process_start_ticks"})
    if isinstance(status, DaemonStatus):
        fields["current"] = status.current.model_dump(mode="json") if status.current else None
    return fields
