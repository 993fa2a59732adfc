"""`harness ledger`: maintenance of the ledger's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict

import click

from harness.cli.display.output import echo, echo_document, emit, json_option
from harness.errors import ConfigurationError
from harness.git.repo import Repo
from harness.ledger.upgrade import upgrade_ledger
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock


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
    with nullcontext() if dry_run else _no_start(workspace), Repo(workspace) as repo:
        result = upgrade_ledger(workspace, repo, load_config(workspace).coordination_branch, dry_run=dry_run)
    if as_json:
        echo_document({"needed": result.is_outdated, "dry_run": dry_run, **asdict(result)})
        return
    if not result.is_outdated:
        echo(f"the ledger on {result.branch} has format {result.after} already: nothing to do")
        return
    emit([asdict(file) for file in result.files], as_json=False)
    formats = f"the ledger on {result.branch} from format {result.before} to format {result.after}"
    echo(f"would upgrade {formats}" if result.commit is None else f"upgraded {formats} in {result.commit[:12]}")


@contextmanager
def _no_start(workspace: Workspace) -> Iterator[None]:
    """Hold the lock of `harness start`, so that no run starts during the block.

    Raises:
        ConfigurationError: a run is in progress.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(workspace.start_lock, owner="harness ledger upgrade"))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"the ledger cannot be upgraded while `harness start` runs ({error.message})",
                where=error.where,
                remedy="end it with `harness stop`, then run `harness ledger upgrade` again",
            ) from error
        yield
