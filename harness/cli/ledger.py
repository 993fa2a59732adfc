"""`harness ledger`: maintenance of the ledger's files."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict

import click

from harness.cli.display.output import echo, echo_document, emit, json_option
from harness.git.repo import Repo
from harness.ledger.upgrade import upgrade_ledger
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace
from harness.workspace.status import no_run


@click.group()
def ledger() -> None:
    """Maintain the ledger's files."""


@ledger.command()
@click.option("--dry-run", is_flag=True, help="Only print the changes.")
@json_option
def upgrade(*, dry_run: bool, as_json: bool) -> None:
    """Upgrade the ledger to the newest format, in one commit. Existing documents do not change.

    `harness start` also upgrades the ledger. Earlier versions of the harness refuse the upgraded ledger.
    """
    workspace = Workspace.find()
    with nullcontext() if dry_run else no_run(workspace, "harness ledger upgrade"), Repo(workspace) as repo:
        branch = load_config(workspace).coordination_branch
        repo.check_coordination_branch(branch)
        result = upgrade_ledger(workspace, repo, branch, dry_run=dry_run)
    if as_json:
        echo_document({"needed": result.is_outdated, "dry_run": dry_run, **asdict(result)})
        return
    if not result.is_outdated:
        echo(f"the ledger on {result.branch} has format {result.after} already: nothing to do")
        return
    emit([asdict(file) for file in result.files], as_json=False)
    formats = f"the ledger on {result.branch} from format {result.before} to format {result.after}"
    echo(f"would upgrade {formats}" if result.commit is None else f"upgraded {formats} in {result.commit[:12]}")
