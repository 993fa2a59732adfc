"""`harness transcript`: prints the prompts, messages and tool uses of a worker's agent, with the costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from harness.cli.display.output import echo, echo_document, emit, json_option
from harness.cli.options import run_option
from harness.errors import AnswerIsNo
from harness.git.repo import Repo
from harness.ledger.accounts import Account, all_accounts, total
from harness.model.printable import count_of
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace

if TYPE_CHECKING:
    from harness.agents.transcripts import Item

_LINES = 12
"""Lines of a long text that are printed without --full."""
_COLUMNS = 400
_INDENT = " " * 20


@click.command()
@click.argument("worker")
@click.option("--session", metavar="ID", help="The session, by the beginning of its id; the default is the last one.")
@click.option("--list", "list_sessions", is_flag=True, help="List the worker's sessions.")
@run_option
@click.option("--full", is_flag=True, help="Print long texts in full.")
@json_option
def transcript(
    worker: str, *, session: str | None, list_sessions: bool, run: str | None, full: bool, as_json: bool
) -> None:
    """Print the transcript of the last session of WORKER (w01, planner, baseline): messages, tools, costs."""
    from harness.agents.transcripts import read_transcript, transcript_files

    workspace = Workspace.find()
    config = load_config(workspace, {"run": run})
    with Repo(workspace) as repo:
        repo.check_coordination_branch(config.coordination_branch)
        every = all_accounts(workspace, repo, config.coordination_branch)
    accounts = [
        opening for opening in every if (opening.run, opening.worker) == (config.run, worker) and opening.session
    ]
    if list_sessions:
        rows = [_row(opening, has_transcript=bool(transcript_files(workspace, opening))) for opening in accounts]
        emit(rows, as_json=as_json, empty=f"{worker} has opened no session in run {config.run}")
        return
    chosen = [opening for opening in accounts if session is None or opening.session.startswith(session)]
    if not chosen:
        workers = sorted({opening.worker for opening in every if opening.run == config.run and opening.session})
        requested = f"session {session} of {worker}" if session else f"session of {worker}"
        raise AnswerIsNo(
            f"there is no {requested} in run {config.run}; workers with sessions: {', '.join(workers) or 'none'}",
            remedy=_remedy(worker, workers),
        )
    account = chosen[-1]
    items = read_transcript(workspace, account, config.agent.prices)
    if not items:
        raise AnswerIsNo(
            f"session {account.session} of {worker} has no transcript: its kind is {account.agent}, or it is older "
            "than 30 days",
            remedy="`harness log` shows its submissions",
        )
    openings = [opening for opening in accounts if opening.session == account.session]
    if as_json:
        document = {"accounts": [opening.record() for opening in openings], "items": [asdict(item) for item in items]}
        echo_document(document)
        return
    _print(items, openings, full=full)


def _remedy(worker: str, workers: Sequence[str]) -> str:
    """Return the command that helps if a session is not found; `workers` have sessions."""
    if worker in workers:
        return f"`harness transcript {worker} --list` lists its sessions"
    return f"harness transcript {workers[0]}" if workers else "`harness start` opens sessions"


def _print(items: list[Item], openings: list[Account], *, full: bool) -> None:
    last, spent = openings[-1], total(openings)
    echo(f"session {last.session} of {last.worker} on {last.problem or 'planning'} ({last.agent}, {last.model})")
    for item in items:
        first, *further = _shortened(item.text, full=full)
        kind = f"{item.kind}!" if item.failed else item.kind
        cost = f"   [{item.usd:.4f} USD]" if item.usd is not None else ""
        echo(f"{item.at[11:19]:8}  {kind:8}  {first}{cost}")
        for line in further:
            echo(f"{_INDENT}{line}")
    tokens = f"{count_of(spent.tokens - spent.output_tokens, 'token')} read, {spent.output_tokens} written"
    state = "ended" if last.ended else "open"
    counts = f"{count_of(spent.turns, 'answer')}, {tokens}, {count_of(spent.evaluations, 'evaluation')}"
    echo(f"{state}: {spent.usd:.4f} USD, {counts}")


def _shortened(text: str, *, full: bool) -> list[str]:
    lines = text.splitlines() or [""]
    if full:
        return lines
    cut = [line if len(line) <= _COLUMNS else f"{line[:_COLUMNS]} ..." for line in lines[:_LINES]]
    return cut if len(lines) <= _LINES else [*cut, f"... {count_of(len(lines) - _LINES, 'more line')}: --full"]


def _row(account: Account, *, has_transcript: bool) -> dict[str, object]:
    return {
        "began": account.began[:19].replace("T", " "),
        "session": account.session,
        "problem": account.problem or "-",
        "agent": account.agent,
        "usd": f"{account.spent.usd:.4f}",
        "answers": account.spent.turns,
        "evaluations": account.spent.evaluations,
        "transcript": "yes" if has_transcript else "no",
    }
