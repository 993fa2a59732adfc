"""`harness audit`: is the ledger whole and true."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from harness.cli.output import emit, json_option

if TYPE_CHECKING:
    from harness.store.audit import Audit

_LONGEST_CELL = 60


@click.command()
@json_option
def audit(*, as_json: bool) -> None:
    """Check that the ledger is whole and true: chain, heads, format, git objects, problem digests, numbers.

    Names each break and exits with 1 when there is one.
    """
    from harness.cli.progress import progress_bar
    from harness.errors import AnswerIsNo
    from harness.store.audit import audit as run_audit
    from harness.store.repo import Repo
    from harness.store.workspace import Workspace

    workspace = Workspace.find()
    with Repo(workspace) as repo, progress_bar("auditing") as progress:
        result = run_audit(workspace, repo, progress=progress)
    if as_json:
        click.echo(json.dumps({"whole": not result.breaks, **asdict(result)}, indent=2, default=str))
    elif result.breaks:
        columns = {
            "file": lambda row: str(row["file"]),
            "seq": lambda row: "" if row["seq"] is None else str(row["seq"]),
            "what": lambda row: str(row["what"]),
            "expected": lambda row: _cell(row["expected"]),
            "found": lambda row: _cell(row["found"]),
        }
        emit([asdict(found) for found in result.breaks], as_json=False, columns=columns)
        click.echo()
    if not as_json:
        click.echo(_looked_at(result))
    if result.breaks:
        count = len(result.breaks)
        raise AnswerIsNo(
            f"the ledger on {result.branch} has {count} {'break' if count == 1 else 'breaks'}",
            remedy=f"`git log -p {result.branch} -- ledger/` shows who changed what",
        )


def _looked_at(result: Audit) -> str:
    whole = "" if result.breaks else "whole: "
    waiting = f" ({result.spooled} of them wait in the spool)" if result.spooled else ""
    return (
        f"{whole}{result.entries} entries and {result.records} records in {result.files} files on {result.branch} "
        f"at {result.commit[:12]}{waiting}"
    )


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"
