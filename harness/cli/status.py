"""`harness status`: the standings; `harness log`: the entries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from harness.cli.output import emit, json_option

if TYPE_CHECKING:
    from harness.model.config import Config
    from harness.store.index import Index
    from harness.store.repo import Repo
    from harness.store.rows import Row
    from harness.store.standings import Standing
    from harness.store.workspace import Workspace

_REASON_LENGTH = 70
_COMMIT_LENGTH = 10


@click.command()
@click.option("--run", metavar="NAME", help="The run to show; by default harness.yaml's.")
@json_option
def status(*, run: str | None, as_json: bool) -> None:
    """Show how every problem stands, and what runs right now."""
    from harness.store.live import running_parts
    from harness.store.standings_table import HEADINGS, cells, for_scripts, totals

    with _index() as (workspace, config, repo, index):
        run = run or config.run
        tables = _standings(workspace, config, index, run)
        parts = running_parts(workspace)
        sentences = repo.checkout_state(config.coordination_branch)
    if as_json:
        problems = [{"target": target, **for_scripts(one)} for target, table in tables for one in table]
        shown = {"run": run, "problems": problems, "running": parts, "checkout": sentences}
        click.echo(json.dumps(shown, indent=2, default=str))
        return
    for target, table in tables:
        click.echo(f"run {run}" + (f", target {target}" if target else ""))
        rows = [dict(zip(HEADINGS, cells(standing), strict=True)) for standing in table]
        emit(rows, as_json=False, empty="no problems here: `harness problems import` brings some in")
        if rows:
            click.echo(totals(table))
    for line in [*_running(parts), *sentences]:
        click.echo(line)


@click.command()
@click.argument("problem", required=False)
@click.option("--run", metavar="NAME", help="Entries of this run only.")
@click.option("-n", "--number", type=click.IntRange(min=1), default=20, show_default=True, help="How many, the newest.")
@json_option
def log(problem: str | None, *, run: str | None, number: int, as_json: bool) -> None:
    """Show ledger entries, the newest last; of PROBLEM (suite/name) or of all."""
    from harness.errors import AnswerIsNo

    with _index() as (_, _, _, index):
        rows = index.rows(problem, run=run, limit=number)
    if as_json:
        emit([asdict(row) for row in rows], as_json=True)
    if not rows:
        about = "".join([f" of {problem}" if problem else "", f" in run {run}" if run else ""])
        raise AnswerIsNo(f"the ledger has no entries{about}", remedy="`harness problems list` names the problems")
    if not as_json:
        emit([_line(row, one_problem=problem is not None) for row in rows], as_json=False)


@contextmanager
def _index() -> Iterator[tuple[Workspace, Config, Repo, Index]]:
    """The refreshed index of the workspace here; what was unusual about it goes to stderr."""
    from harness.cli.progress import progress_bar
    from harness.store.configuration import load_config
    from harness.store.index import Index
    from harness.store.repo import Repo
    from harness.store.workspace import Workspace

    workspace = Workspace.find()
    config = load_config(workspace)
    with Repo(workspace) as repo, Index(workspace, branch=config.coordination_branch) as index:
        with progress_bar("reading the ledger") as progress:
            messages = index.refresh(repo, progress)
        for message in messages:
            click.echo(f"harness: {message}", err=True)
        yield workspace, config, repo, index


def _standings(
    workspace: Workspace, config: Config, index: Index, run: str
) -> list[tuple[str | None, tuple[Standing, ...]]]:
    """The standings of each target that the run has entries for."""
    from harness.store.problems import list_problems
    from harness.store.standings import known_problems, known_targets, standings

    here = [str(problem) for problem in list_problems(workspace.problems, config.problems)]
    problems = sorted({*here, *known_problems(index)})
    targets: list[str | None] = [config.target] if config.target else [*known_targets(index, run)]
    return [(target, standings(index, problems, target, run)) for target in targets or [None]]


def _line(row: Row, *, one_problem: bool) -> dict[str, Any]:
    from harness.store.standings_table import speedup

    reason = row.reason or row.note or ("" if row.cites is None else f"cites {row.cites}")
    line = {
        "at": row.at[:19].replace("T", " "),
        "problem": row.problem,
        "seq": row.seq,
        "kind": row.kind,
        "verdict": row.verdict or "-",
        "speed-up [95 %]": speedup(row),
        "worker": row.worker or "-",
        "commit": (row.commit or "-")[:_COMMIT_LENGTH],
        "reason": reason if len(reason) <= _REASON_LENGTH else f"{reason[: _REASON_LENGTH - 1]}…",
    }
    return {key: value for key, value in line.items() if key != "problem" or not one_problem}


def _running(parts: dict[str, dict[str, Any]]) -> list[str]:
    if not parts:
        return ["nothing runs here now; `harness start` does"]
    return [f"{name} (pid {state['pid']}): {_doing(state)}" for name, state in sorted(parts.items())]


def _doing(state: dict[str, Any]) -> str:
    """What a part says of itself, in a line: the daemon's current candidate, a worker's problem."""
    current = state.get("current") or state
    words = [str(current[key]) for key in ("state", "kind", "problem", "stage") if current.get(key)]
    if state.get("worker") is None and current.get("worker"):
        words.append(f"of {current['worker']}")
    if state.get("queued"):
        words.append(f"({state['queued']} queued)")
    return " ".join(words) or "running"
