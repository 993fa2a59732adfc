"""`harness log`: prints the ledger's entries, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from harness.cli.completion_values import complete_problem
from harness.cli.display.cost_table import cost_lines
from harness.cli.display.output import echo_document, echo_lines, emit, json_option
from harness.cli.display.standings import speedup_with_margin
from harness.cli.display.tables import Column, screen_width, table_lines
from harness.cli.merge_commands import opened
from harness.cli.options import COUNT, RUN
from harness.errors import AnswerIsNo, ConfigurationError, HarnessError
from harness.git.problem_digests import digest_at
from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.judging_costs import judging_costs
from harness.ledger.standings import known_runs
from harness.ledger.standings_table import microseconds, speedup
from harness.model.champions import counts
from harness.model.config import Config
from harness.model.interval import geometric_mean
from harness.model.paths import is_problem
from harness.model.weaknesses import for_scripts, weakness_legend, weakness_mark

_COMMIT_LENGTH = 10
_SHORT_KINDS = {"evaluation": "eval", "confirmation": "confirm"}


@dataclass(frozen=True)
class _LogLine:
    row: Row
    """The entry; a champion entry has the numbers of the entry that it cites."""
    message: str


@click.command()
@click.argument("problem", required=False, shell_complete=complete_problem)
@click.option("--run", type=RUN, metavar="NAME", help="Entries of this run only.")
@click.option("-n", "--number", type=COUNT, default=20, show_default=True, help="Number of entries.")
@click.option("--cost", is_flag=True, help="Show the seconds of judging by problem and stage, of all entries.")
@json_option
def log(problem: str | None, *, run: str | None, number: int, cost: bool, as_json: bool) -> None:
    """Show the newest ledger entries of PROBLEM (suite/name) or of all problems, the newest last.

    The message is the commit's subject, or the reason why the candidate did not pass.
    """
    if cost:
        _show_costs(problem, run, as_json=as_json)
        return
    with opened() as (_, config, repo, index):
        rows = index.rows(problem, run=run, limit=number)
        lines = [_line(index, repo, row) for row in rows]
        reason = None if rows else _reason_for_none(index, repo, config, problem, run)
    if as_json:
        emit([_for_scripts(row, line) for row, line in zip(rows, lines, strict=True)], as_json=True)
    if reason is not None:
        raise reason
    if not as_json:
        echo_lines(table_lines(lines, _columns(one_problem=problem is not None), screen_width()))
        echo_lines(_legend(lines))


def _show_costs(problem: str | None, run: str | None, *, as_json: bool) -> None:
    """Print the device time by problem and stage.

    Raises:
        HarnessError: no entry has a cost.
    """
    with opened() as (_, config, repo, index):
        costs = judging_costs(index, problem=problem, run=run)
        reason = None if costs.by_problem else _reason_for_none(index, repo, config, problem, run)
    if as_json:
        echo_document(costs.for_scripts())
    if reason is not None:
        raise reason
    if not as_json:
        echo_lines(cost_lines(costs, screen_width()))


def _reason_for_none(index: Index, repo: Repo, config: Config, problem: str | None, run: str | None) -> HarnessError:
    """Return the error that explains why no entry is of a problem and a run; None means any."""
    branch = config.coordination_branch
    if problem is not None and not index.rows(problem, limit=1) and not _exists(repo, branch, problem):
        return ConfigurationError(f"there is no problem `{problem}` on {branch}", remedy="harness problems list")
    runs = [name for name in known_runs(index) if problem is None or index.rows(problem, run=name, limit=1)]
    about = "".join([f" of {problem}" if problem else "", f" in run {run}" if run else ""])
    option = f" --problem {problem}" if problem else ""
    remedy = f"runs with such entries: {', '.join(runs)}" if runs else f"`harness start{option}` makes entries"
    return AnswerIsNo(f"the ledger has no entries{about}", remedy=remedy)


def _exists(repo: Repo, branch: str, problem: str) -> bool:
    return is_problem(problem) and digest_at(repo, repo.tip(branch), problem) is not None


def _for_scripts(row: Row, line: _LogLine) -> dict[str, Any]:
    fields = {name: value for name, value in row._asdict().items() if not name.endswith("_text")}
    return {**fields, "stages": row.stages, "weaknesses": for_scripts(line.row.weaknesses), "message": line.message}


def _legend(lines: Sequence[_LogLine]) -> list[str]:
    """Return lines that explain the symbol after a number, the newest entries first."""
    shown = [line.row for line in reversed(lines) if line.row.speedup is not None or line.row.kind == "baseline"]
    return weakness_legend((row.problem, row.seq, row.weaknesses) for row in shown)


def _line(index: Index, repo: Repo, row: Row) -> _LogLine:
    cited = index.row(row.problem, row.cites) if row.kind == "champion" and row.cites else None
    shown = row
    if cited is not None:
        numbers = ("speedup", "speedup_ci95_low", "speedup_ci95_high", "latency_us", "trust", "weaknesses_text")
        shown = row._replace(**{name: getattr(cited, name) for name in numbers})
    if row.kind == "baseline":
        shown = row._replace(latency_us=row.baseline_us)
    return _LogLine(shown, " ".join(_message(index, repo, row).split()))


def _message(index: Index, repo: Repo, row: Row) -> str:
    """Return a one-line description of an entry."""
    if row.reason or row.note:
        return row.reason or row.note or ""
    if row.kind == "confirmation":
        return f"confirms seq {row.cites}"
    if row.kind == "champion":
        return f"champion now, by seq {row.cites}"
    if row.kind == "baseline":
        return ", ".join(_variants(index, row)) or "no variant is correct"
    subject = repo.commit(row.commit).subject if row.commit and repo.has_object(row.commit) else ""
    return f"as seq {row.answered_from} (same code and launches): {subject}" if row.answered_from else subject


def _variants(index: Index, row: Row) -> Iterator[str]:
    """Yield the name and geometric mean of each correct variant of a baseline entry."""
    entry = index.entry(row.problem, row.seq)
    tables = list(entry.baselines.values()) if entry is not None else []
    for name in dict.fromkeys(name for table in tables for name in table):
        times = [time for table in tables if (time := table.get(name))]
        if len(times) == len(tables):
            yield f"{name} {microseconds(geometric_mean(times))}"


def _old_protocol(row: Row) -> str:
    """Return a suffix that names the judge protocol of a speed-up that does not count any more."""
    return "" if row.speedup is None or counts(row) or row.judge_protocol is None else f" (judge {row.judge_protocol})"


def _columns(*, one_problem: bool) -> tuple[Column[_LogLine], ...]:
    def at(line: _LogLine) -> str:
        return line.row.at[:19].replace("T", " ")

    def interval(line: _LogLine) -> str:
        return f"{speedup(line.row)}{_old_protocol(line.row)}"

    def margin(line: _LogLine) -> str:
        return f"{speedup_with_margin(line.row)}{_old_protocol(line.row)}"

    def short_kind(line: _LogLine) -> str:
        return _SHORT_KINDS.get(line.row.kind, line.row.kind)

    def latency(line: _LogLine) -> str:
        mark = weakness_mark(line.row.weaknesses) if line.row.kind == "baseline" and line.row.latency_us else ""
        return f"{microseconds(line.row.latency_us)}{mark}"

    problem: tuple[Column[_LogLine], ...] = (Column("problem", lambda line: line.row.problem, min_width=16),)
    return (
        Column("at", at, ((6, lambda line: at(line)[5:16]), (4, None))),
        *(() if one_problem else problem),
        Column("seq", lambda line: str(line.row.seq)),
        Column("kind", lambda line: line.row.kind, ((2, short_kind),)),
        Column("verdict", lambda line: line.row.verdict or "-", min_width=8),
        Column("latency", latency),
        Column("speed-up [95 %]", interval, ((5, margin),), "speed-up ±"),
        Column("worker", lambda line: line.row.worker or "-", ((3, None),)),
        Column("commit", lambda line: (line.row.commit or "-")[:_COMMIT_LENGTH], ((7, None),)),
        Column("message", lambda line: line.message or "-", min_width=24 if one_problem else 16),
    )
