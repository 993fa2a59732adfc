"""`harness init`: a new workspace, or the missing parts of one."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from harness.cli.output import echo


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--problems",
    type=click.Choice(["starter", "none"]),
    default="starter",
    show_default=True,
    help="Which of the shipped problems to copy.",
)
@click.option("--github", is_flag=True, help="Add the workflow that checks pull requests with `harness proof`.")
def init(directory: Path, problems: str, *, github: bool) -> None:
    """Make a workspace in DIRECTORY: a git repository with COORDINATION.md, harness.yaml, problems/ and ledger/.

    What is there already is left as it is; what is new is committed on the branch that is checked out.
    """
    from harness.ledger.create_workspace import create_workspace

    made = create_workspace(directory, starter=problems == "starter", github=github)
    root = made.workspace.root
    if not made.added:
        echo(f"{root} is a workspace already; nothing was missing")
        return
    echo(f"workspace {root}, branch {made.branch}: added {', '.join(made.added)}")
    shown = "" if root == Path.cwd() else f"cd {shlex.quote(str(directory))} && "
    echo(f"next: {shown}harness doctor    then: harness start")
