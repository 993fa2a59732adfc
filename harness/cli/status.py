"""`harness status`: the day in one screen; `harness log`: the entries."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from harness.cli.completing import complete_problem
from harness.cli.merging import opened
from harness.cli.output import echo, echo_json, emit, json_option
from harness.model.printable import printable
from harness.model.truncate import shortened

if TYPE_CHECKING:
    from harness.ledger.entry_rows import Row
    from harness.ledger.index import Index
    from harness.ledger.standings import Standing
    from harness.model.config import Config
    from harness.model.process_status import ProcessStatus
    from harness.report.today import Today
    from harness.workspace.directories import Workspace

_REASON_LENGTH = 70
_COMMIT_LENGTH = 10
_NAMED = 3


@click.command()
@click.option("--run", metavar="NAME", help="The run to show; by default harness.yaml's.")
@click.option("--all", "every", is_flag=True, help="Every problem, also where the screen is too small.")
@click.option("--costs", is_flag=True, help="Show only what the agents used: money, tokens, turns, evaluations.")
@json_option
def status(*, run: str | None, every: bool, costs: bool, as_json: bool) -> None:
    """Show in one screen what runs, what improved since yesterday, what is stuck, what it cost, what waits for you."""
    if costs:
        _costs(run, as_json=as_json)
        return
    from harness.ledger.standings_table import for_scripts
    from harness.report.merging import main_branch, pick_remote
    from harness.report.today import today
    from harness.workspace.status import running_processes

    with opened() as (workspace, config, repo, index):
        run = run or config.run
        base = main_branch(repo, config.coordination_branch, pick_remote(repo, None))
        shown = [
            (target, table, today(repo, index, config, table, run=run, target=target or "cpu", base=base))
            for target, table in _standings(workspace, config, index, run)
        ]
        processes = running_processes(workspace)
        sentences = repo.checkout_state(config.coordination_branch)
    if as_json:
        problems = [{"target": target, **for_scripts(one)} for target, table, _ in shown for one in table]
        days = [{"target": target, **day.for_scripts()} for target, _, day in shown]
        running = {name: _for_scripts(status) for name, status in processes.items()}
        told = {"run": run, "problems": problems, "today": days, "running": running, "checkout": sentences}
        echo_json(json.dumps(told, indent=2, default=str))
        return
    for target, table, day in shown:
        echo(f"run {run}" + (f", target {target}" if target else ""), bold=True)
        lines = [*_running(processes), *_of_today(day), *sentences]
        _print_table(table, room=None if every else _room(len(lines), len(shown)))
        for line in lines:
            echo(line)


def _room(lines: int, tables: int) -> int | None:
    """How many rows of a table fit on the screen; None where nobody looks at one."""
    import shutil
    import sys

    if not sys.stdout.isatty():
        return None
    return max(5, (shutil.get_terminal_size().lines - lines - 3) // tables - 5)


def _print_table(table: tuple[Standing, ...], *, room: int | None) -> None:
    from harness.ledger.standings_table import HEADINGS, cells, outdated_note, totals

    shown = list(table)
    if room is not None and len(table) > room:  # those with news; in the order of their names, as always
        newest = sorted(table, key=lambda one: one.last_at or "", reverse=True)[:room]
        shown = [one for one in table if one in newest]
    rows = [dict(zip(HEADINGS, cells(standing), strict=True)) for standing in shown]
    emit(rows, as_json=False, empty="no problems here: `harness problems import` brings some in")
    if len(shown) < len(table):
        echo(f"… and {len(table) - len(shown)} more: `harness status --all`")
    for line in [totals(table), *outdated_note(table)] if rows else []:
        echo(line)


def _of_today(day: Today) -> list[str]:
    """A line for each thing that a person asks in the morning."""
    improved = [
        f"{one.problem} {one.speedup:.3f}x" + (f" (was {one.before:.3f}x)" if one.before else "")
        for one in day.improved
    ]
    stuck = [f"{problem} ({why})" for problem, why in day.stuck]
    spent = "" if day.usd is None else f", ${day.usd:.2f} (${day.usd_since or 0:.2f} since yesterday)"
    lines = [
        f"improved since yesterday: {_some(improved) or 'nothing'}",
        f"stuck: {_some(stuck) or 'nothing'}",
        f"cost: {_hours(day.device_s)} of device time ({_hours(day.device_s_since)} since yesterday){spent}",
    ]
    if day.suspects:
        lines.append(f"waits for you: {len(day.suspects)} SUSPECT: {day.suspects[0].what}: `{day.suspects[0].command}`")
    if day.unmerged:
        names = _some([one.what for one in day.unmerged])
        lines.append(f"waits for you: champions without a pull request: {names}: `{day.unmerged[0].command}`")
    return lines


def _some(words: list[str]) -> str:
    return ", ".join(words[:_NAMED]) + (f" and {len(words) - _NAMED} more" if len(words) > _NAMED else "")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _costs(run: str | None, *, as_json: bool) -> None:
    from harness.cli.costs import cost_rows, print_costs
    from harness.ledger.accounts import all_accounts

    with opened() as (workspace, config, repo, index):
        name = run or config.run
        accounts = [each for each in all_accounts(workspace, repo, config.coordination_branch) if each.run == name]
        tables = [one for _, table in _standings(workspace, config, index, name) for one in table]
    rows = cost_rows(accounts, tables)
    if as_json:
        echo_json(json.dumps({"run": name, **rows}, indent=2))
    else:
        print_costs(rows)


@click.command()
@click.argument("problem", required=False, shell_complete=complete_problem)
@click.option("--run", metavar="NAME", help="Entries of this run only.")
@click.option("-n", "--number", type=click.IntRange(min=1), default=20, show_default=True, help="How many, the newest.")
@json_option
def log(problem: str | None, *, run: str | None, number: int, as_json: bool) -> None:
    """Show ledger entries, the newest last; of PROBLEM (suite/name) or of all."""
    from harness.errors import AnswerIsNo

    with opened() as (_, _, _, index):
        rows = index.rows(problem, run=run, limit=number)
    if as_json:
        emit([asdict(row) for row in rows], as_json=True)
    if not rows:
        about = "".join([f" of {problem}" if problem else "", f" in run {run}" if run else ""])
        raise AnswerIsNo(f"the ledger has no entries{about}", remedy="`harness problems list` names the problems")
    if not as_json:
        emit([_line(row, one_problem=problem is not None) for row in rows], as_json=False)


def _standings(
    workspace: Workspace, config: Config, index: Index, run: str
) -> list[tuple[str | None, tuple[Standing, ...]]]:
    """The standings of each target that the run has entries for."""
    from harness.formats.problems import list_problems
    from harness.ledger.standings import known_problems, known_targets, standings

    here = [str(problem) for problem in list_problems(workspace.problems, config.problems)]
    problems = sorted({*here, *known_problems(index)})
    targets: list[str | None] = [config.target] if config.target else [*known_targets(index, run)]
    return [(target, standings(index, problems, target, run)) for target in targets or [None]]


def _line(row: Row, *, one_problem: bool) -> dict[str, Any]:
    from harness.ledger.standings_table import speedup

    reason = row.reason or row.note or ("" if row.cites is None else f"cites {row.cites}")
    line = {
        "at": row.at[:19].replace("T", " "),
        "problem": row.problem,
        "seq": row.seq,
        "kind": row.kind,
        "verdict": row.verdict or "-",
        "speed-up [95 %]": f"{speedup(row)}{_history(row)}",
        "worker": row.worker or "-",
        "commit": (row.commit or "-")[:_COMMIT_LENGTH],
        "reason": shortened(reason, _REASON_LENGTH),
    }
    return {key: value for key, value in line.items() if key != "problem" or not one_problem}


def _history(row: Row) -> str:
    """The mark of a number that does not count."""
    from harness.model.champions import counts

    return "" if row.speedup is None or counts(row) or row.judge_protocol is None else f" (judge {row.judge_protocol})"


def _for_scripts(status: ProcessStatus) -> dict[str, Any]:
    from harness.model.process_status import DaemonStatus

    fields = status.model_dump(mode="json", exclude={"format", "process_start_ticks"})
    if isinstance(status, DaemonStatus):
        fields["current"] = status.current.model_dump(mode="json") if status.current else None
    return fields


def _running(processes: dict[str, ProcessStatus]) -> list[str]:
    if not processes:
        return ["nothing runs here now; `harness start` does"]
    return [f"{name} (pid {status.pid}): {_activity(status)}" for name, status in processes.items()]


def _activity(status: ProcessStatus) -> str:
    """Return what a process does, in a line: the daemon's current candidate, a worker's state and problem."""
    from harness.model.process_status import DaemonStatus, WorkerStatus

    words: list[str | None] = []
    if isinstance(status, WorkerStatus):
        words = [status.state, status.problem]
    elif isinstance(status, DaemonStatus):
        if judge := status.current:
            words = [judge.kind, judge.problem, judge.stage, f"of {judge.worker}" if judge.worker else None]
        words.append(f"({status.queued} queued)" if status.queued else None)
    return printable(" ".join(word for word in words if word)) or "running"
