"""The lines of `harness status` and `harness status --watch`."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.cli.display.standings import standing_lines
from harness.formats.problems import list_problems
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.standings import Standing, known_problems, known_targets, standings
from harness.ledger.standings_table import totals, weakness_notes
from harness.model.config import Config
from harness.model.printable import first_names, printable, shortened
from harness.model.process_status import DaemonStatus, ProcessStatus, WorkerStatus
from harness.model.weaknesses import SYMBOL
from harness.report.merging import main_branch
from harness.report.today import Today, today
from harness.workspace.directories import Workspace

_NAMED = 3


@dataclass(frozen=True)
class LedgerView:
    """Content of the ledger for one run and target."""

    target: str | None
    table: tuple[Standing, ...]
    day: Today
    trends: Mapping[str, Sequence[float]]
    """Problem -> the speed-ups of its evaluations that passed, oldest first."""


def run_standings(
    workspace: Workspace, config: Config, index: Index, run: str
) -> list[tuple[str | None, tuple[Standing, ...]]]:
    """Return (target, standings) of each target for which the run has entries; the target is None without entries."""
    problems = sorted({*list_problems(workspace.problems, config.problems), *known_problems(index)})
    targets: list[str | None] = [config.target] if config.target else [*known_targets(index, run)]
    return [(target, standings(index, problems, target, run)) for target in targets or [None]]


def ledger_views(workspace: Workspace, config: Config, repo: Repo, index: Index, run: str) -> list[LedgerView]:
    """Return the view of the ledger for each target of a run.

    Args:
        index: index of the ledger, refreshed by the caller.
    """
    base = main_branch(repo, config.coordination_branch)
    views = []
    for target, table in run_standings(workspace, config, index, run):
        day = today(repo, index, config, table, run=run, target=target or "cpu", base=base)
        views.append(LedgerView(target, table, day, _trends(index, run, target)))
    return views


def _trends(index: Index, run: str, target: str | None) -> dict[str, list[float]]:
    sql = (
        "SELECT problem, speedup FROM entries WHERE kind = 'evaluation' AND verdict = 'PASSED' "
        "AND run = ? AND target = ? AND speedup IS NOT NULL ORDER BY problem, seq"
    )
    trends: dict[str, list[float]] = defaultdict(list)
    for problem, speedup in index.query(sql, (run, target)):
        trends[problem].append(speedup)
    return trends


def today_lines(day: Today) -> list[str]:
    """Return the lines on gains, stuck problems, cost, and candidates that need a person's attention."""
    improved = [
        f"{gain.problem} {gain.speedup:.3f}x{SYMBOL if gain.weakened else ''}"
        f"{f' (was {gain.before:.3f}x)' if gain.before else ''}"
        for gain in day.improved
    ]
    stuck = [f"{problem} ({reason})" for problem, reason in day.stuck]
    spent = "" if day.usd is None else f", ${day.usd:.2f} (${day.usd_since or 0:.2f} since yesterday)"
    lines = [
        f"improved since yesterday: {first_names(improved, _NAMED) or 'nothing'}",
        f"stuck: {first_names(stuck, _NAMED) or 'nothing'}",
        f"cost: {_hours(day.device_s)} of device time ({_hours(day.device_s_since)} since yesterday){spent}",
    ]
    if day.suspects:
        lines.append(
            f"waits for you: {len(day.suspects)} SUSPECT: {day.suspects[0].description}: `{day.suspects[0].command}`"
        )
    if day.unmerged:
        names = first_names([champion.description for champion in day.unmerged], _NAMED)
        lines.append(f"waits for you: champions without a pull request: {names}: `{day.unmerged[0].command}`")
    return lines


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def running_lines(processes: dict[str, ProcessStatus]) -> list[str]:
    """Return a line for each running process."""
    if not processes:
        return ["no process runs here now; `harness start` starts them"]
    lines = [f"{name} (pid {status.pid}): {_activity(status)}" for name, status in processes.items()]
    return [*lines, *(line for status in processes.values() for line in _host_lines(status))]


def _host_lines(status: ProcessStatus) -> list[str]:
    """Return a line for each host of the daemon's cluster: its devices, or why it is refused."""
    if not isinstance(status, DaemonStatus):
        return []
    states = {judge.device: judge.problem or judge.failure or judge.state for judge in status.judges}
    lines = []
    for host in status.hosts:
        parts = [f"{device.partition('/')[2]} {states.get(device, 'joins')}" for device in host.devices]
        words = host.refused or ", ".join(parts) or "no device for a judge"
        lines.append(printable(f"host {host.name} ({host.address}): {words}"))
    return lines


def _activity(status: ProcessStatus) -> str:
    """Return the activity of a process in a line: the daemon's current candidate, a worker's state and problem."""
    words: list[str | None] = []
    if isinstance(status, WorkerStatus):
        words = [status.state, status.problem]
    elif isinstance(status, DaemonStatus):
        if status.paused:
            words = [f"paused: {status.paused}"]
        elif judge := status.current:
            words = [judge.kind, judge.problem, judge.stage, f"of {judge.worker}" if judge.worker else None]
        words.append(f"({status.queued} queued)" if status.queued else None)
    return printable(" ".join(word for word in words if word)) or "running"


def frame(
    run: str, views: Sequence[LedgerView], running: Sequence[str], time_utc: datetime, width: int, height: int
) -> list[str]:
    """Return one screen: at most `height` lines of at most `width` characters.

    On a small screen, the problems whose last entry is oldest are omitted first.

    Args:
        views: one for each target.
        running: a line for each process.
        width: in characters.
        height: in lines.
    """
    weak = (line for view in views for line in weakness_notes(view.table))
    texts = [*running, *(line for view in views for line in today_lines(view.day)), *weak]
    below = [part for text in texts for part in textwrap.wrap(printable(text), width, subsequent_indent="  ")]
    max_rows = max(3, (height - len(below)) // max(1, len(views)) - 5)
    lines = []
    for view in views:
        target = f", target {view.target}" if view.target else ""
        lines.append(f"run {run}{target}   {time_utc:%Y-%m-%d %H:%M:%S} UTC")
        lines += standing_lines(view.table, width, max_rows=max_rows, trends=view.trends)
        lines.append(totals(view.table))
    return [shortened(line, width) for line in [*lines, *below]][:height]
