"""`harness status`: processes, standings, recent gains and cost of a run: one screen, `--costs` or `--watch`."""

from __future__ import annotations

import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from harness.cli.display.output import echo, echo_document, echo_lines, emit, json_option
from harness.cli.display.standings import standing_lines
from harness.cli.display.status_lines import LedgerView, frame, ledger_views, run_standings, running_lines, today_lines
from harness.cli.display.tables import screen_width
from harness.cli.merge_commands import opened
from harness.cli.options import RUN
from harness.errors import ConfigurationError
from harness.ledger.accounts import Account, Spent, all_accounts, total
from harness.ledger.standings import Standing
from harness.ledger.standings_table import for_scripts, outdated_note, totals, weakness_notes
from harness.model.process_status import DaemonStatus, ProcessStatus
from harness.workspace.status import running_processes

_PATIENCE_S = 0.2
"""While another process refreshes the index for longer, the standings shown are those of a moment ago."""
_INTERVAL_S = 1.0
_OLDEST_S = 60.0
"""Interval at which the standings are computed even if the ledger has not grown: "since yesterday" depends on time."""


@click.command()
@click.option("--run", type=RUN, metavar="NAME", help="The run to show; by default harness.yaml's.")
@click.option("--all", "show_all", is_flag=True, help="Show all problems, also if they exceed the screen.")
@click.option("--costs", is_flag=True, help="Show only the agents' usage: money, tokens, turns, evaluations.")
@click.option("--watch", is_flag=True, help="Update the screen, with the speed-ups over time. Ctrl-C ends it.")
@json_option
def status(*, run: str | None, show_all: bool, costs: bool, watch: bool, as_json: bool) -> None:
    """Show processes, standings, gains since yesterday, stuck problems, cost, and what needs your attention."""
    if watch:
        _watch(run)
    elif costs:
        _costs(run, as_json=as_json)
    else:
        _status(run, show_all=show_all, as_json=as_json)


def _status(run: str | None, *, show_all: bool, as_json: bool) -> None:
    with opened(patience_s=_PATIENCE_S) as (workspace, config, repo, index):
        run = run or config.run
        views = ledger_views(workspace, config, repo, index, run)
        processes = running_processes(workspace)
        sentences = repo.checkout_state(config.coordination_branch)
    if as_json:
        problems = [{"target": view.target, **for_scripts(standing)} for view in views for standing in view.table]
        days = [{"target": view.target, **view.day.for_scripts()} for view in views]
        running = {name: _for_scripts(status) for name, status in processes.items()}
        document = {"run": run, "problems": problems, "today": days, "running": running, "checkout": sentences}
        echo_document(document)
        return
    for view in views:
        table = view.table
        echo(f"run {run}" + (f", target {view.target}" if view.target else ""), bold=True)
        lines = [*running_lines(processes), *today_lines(view.day), *sentences]
        max_rows = None if show_all else _max_rows(len(lines), len(views))
        if table:
            notes = [totals(table), *outdated_note(table), *weakness_notes(table)]
            lines = [*standing_lines(table, screen_width(), max_rows=max_rows), *notes, *lines]
        else:
            lines.insert(0, "there are no problems: `harness problems import` adds some")
        echo_lines(lines)


def _max_rows(lines: int, tables: int) -> int | None:
    """Return the number of rows of each table that fit on the screen; None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return max(5, (shutil.get_terminal_size().lines - lines - 3) // tables - 5)


def _costs(run: str | None, *, as_json: bool) -> None:
    with opened() as (workspace, config, repo, index):
        name = run or config.run
        every_account = all_accounts(workspace, repo, config.coordination_branch)
        accounts = [account for account in every_account if account.run == name]
        tables = [standing for _, table in run_standings(workspace, config, index, name) for standing in table]
    rows = _cost_rows(accounts, tables)
    if as_json:
        echo_document({"run": name, **rows})
        return
    for heading, table in rows.items():
        emit([_cells(row) for row in table], as_json=False, empty=f"{heading}: no session was opened yet")
        if heading != "total":
            echo()


def _cost_rows(accounts: Sequence[Account], tables: Iterable[Standing]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables `workers`, `problems` (with gains and the cost per gain) and `total`."""
    by_worker: dict[str, list[Account]] = defaultdict(list)
    by_problem: dict[str, list[Account]] = defaultdict(list)
    for account in accounts:
        by_worker[account.worker].append(account)
        by_problem[account.problem or "(planning)"].append(account)
    gains = {standing.problem: len(standing.gains) for standing in tables}
    problems = []
    for name, group in sorted(by_problem.items()):
        spent = total(group)
        problems.append(_row("problem", name, spent) | _gain_cells(spent, gains.get(name, 0)))
    spent = total(accounts)
    return {
        "workers": [_row("worker", name, total(group)) for name, group in sorted(by_worker.items())],
        "problems": problems,
        "total": [_row("all", "all", spent) | _gain_cells(spent, sum(gains.get(name, 0) for name in by_problem))],
    }


def _row(kind: str, name: str, spent: Spent) -> dict[str, Any]:
    return {
        kind: name,
        "usd": round(spent.usd, 4),
        "tokens_in": spent.input_tokens + spent.cache_write_tokens + spent.cache_read_tokens,
        "tokens_out": spent.output_tokens,
        "turns": spent.turns,
        "minutes": round(spent.seconds / 60, 1),
        "evaluations": spent.evaluations,
        "duplicates": spent.duplicates,
    }


def _gain_cells(spent: Spent, gains: int) -> dict[str, float | None]:
    return {"gains": gains, "usd_per_gain": spent.usd / gains if gains else None}


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    shown = {}
    for key, value in row.items():
        head = "USD per gain" if key == "usd_per_gain" else key.replace("_", " ").replace("usd", "USD")
        shown[head] = "-" if value is None else f"{value:.4f}" if key.startswith("usd") else str(value)
    return shown


def _for_scripts(status: ProcessStatus) -> dict[str, Any]:
    fields = status.model_dump(mode="json", exclude={"format", "process_start_ticks"})
    if isinstance(status, DaemonStatus):
        fields["current"] = status.current.model_dump(mode="json") if status.current else None
    return fields


def _watch(run: str | None) -> None:
    """Draw the status of a run on the whole terminal until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    if not sys.stdout.isatty():
        raise ConfigurationError("--watch needs a terminal: stdout is not one", remedy="harness status")
    with opened() as (workspace, config, repo, index), Live(screen=True, auto_refresh=False) as live:
        run, key, read_at = run or config.run, "", 0.0
        views: list[LedgerView] = []
        while True:
            index.refresh(repo)
            present = f"{repo.tip(config.coordination_branch)} {index.count()}"
            if present != key or time.monotonic() - read_at > _OLDEST_S:
                views, key, read_at = ledger_views(workspace, config, repo, index, run), present, time.monotonic()
            running = running_lines(running_processes(workspace))
            lines = frame(run, views, running, datetime.now(UTC), live.console.width, live.console.height)
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            time.sleep(_INTERVAL_S)
