"""`harness status --watch`: draws the standings and the running processes again whenever they change."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from harness.cli.display.standings import standing_columns
from harness.cli.display.status_lines import run_standings, running_lines, today_lines
from harness.cli.display.tables import table_lines
from harness.cli.merge_commands import opened
from harness.ledger.standings_table import totals, weakness_notes
from harness.model.printable import printable, shortened

if TYPE_CHECKING:
    from harness.git.repo import Repo
    from harness.ledger.index import Index
    from harness.ledger.standings import Standing
    from harness.model.config import Config
    from harness.workspace.directories import Workspace

_INTERVAL_S = 1.0
_OLDEST_S = 60.0
"""Interval at which the standings are computed even if the ledger has not grown: "since yesterday" depends on time."""


@dataclass(frozen=True)
class LedgerView:
    """Content of the ledger for one run and target."""

    target: str | None
    table: tuple[Standing, ...]
    trends: Mapping[str, Sequence[float]]
    """Problem -> the speed-ups of its evaluations that passed, oldest first."""
    today: tuple[str, ...]


def watch_status(run: str | None) -> None:
    """Draw the status of a run on the whole terminal until Ctrl-C.

    Raises:
        ConfigurationError: stdout is not a terminal.
    """
    from rich.live import Live
    from rich.text import Text

    from harness.errors import ConfigurationError
    from harness.workspace.status import running_processes

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


def ledger_views(workspace: Workspace, config: Config, repo: Repo, index: Index, run: str) -> list[LedgerView]:
    """Return the view of the ledger for each target of a run.

    Args:
        workspace: has the problems.
        config: sets the target and the coordination branch.
        repo: the workspace's repository.
        index: index of the ledger, refreshed by the caller.
        run: name of the run.
    """
    from harness.report.merging import main_branch, pick_remote
    from harness.report.today import today

    base = main_branch(repo, config.coordination_branch, pick_remote(repo, None))
    views = []
    for target, table in run_standings(workspace, config, index, run):
        day = today(repo, index, config, table, run=run, target=target or "cpu", base=base)
        views.append(LedgerView(target, table, _trends(index, run, target), tuple(today_lines(day))))
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


def frame(
    run: str, views: Sequence[LedgerView], running: Sequence[str], time_utc: datetime, width: int, height: int
) -> list[str]:
    """Return one screen: at most `height` lines of at most `width` characters.

    On a small screen, the problems whose last entry is oldest are omitted first.

    Args:
        run: name of the run.
        views: one for each target.
        running: a line for each process.
        time_utc: the present time.
        width: in characters.
        height: in lines.
    """
    weak = (line for view in views for line in weakness_notes(view.table))
    texts = [*running, *(line for view in views for line in view.today), *weak]
    below = [part for text in texts for part in textwrap.wrap(printable(text), width, subsequent_indent="  ")]
    max_rows = max(3, (height - len(below)) // max(1, len(views)) - 5)
    lines = []
    for view in views:
        target = f", target {view.target}" if view.target else ""
        lines.append(f"run {run}{target}   {time_utc:%Y-%m-%d %H:%M:%S} UTC")
        newest = sorted(view.table, key=lambda standing: standing.last_at or "", reverse=True)[:max_rows]
        shown = [standing for standing in view.table if standing in newest]
        lines += table_lines(shown, standing_columns(view.trends), width)
        if len(shown) < len(view.table):
            lines.append(f"… and {len(view.table) - len(shown)} more: `harness status --all`")
        lines.append(totals(view.table))
    return [shortened(line, width) for line in [*lines, *below]][:height]
