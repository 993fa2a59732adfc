"""`harness init`: a new workspace, or the missing parts of one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from harness.cli.completion_values import complete_shipped_suite
from harness.cli.display.output import echo

_NAMES_SHOWN = 3


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--problems",
    metavar="SUITE[,SUITE]...",
    default="starter",
    show_default=True,
    shell_complete=complete_shipped_suite,
    help="Which of the shipped problems to copy: suites (`harness problems suites --shipped`), all, or none.",
)
@click.option(
    "--profile",
    type=click.Choice(["full", "small"]),
    default="full",
    show_default=True,
    help="small: the problems at sizes that a CPU computes in milliseconds.",
)
@click.option("--github", is_flag=True, help="Add the workflow that checks pull requests with `harness proof`.")
def init(directory: Path, problems: str, profile: str, *, github: bool) -> None:
    """Make a workspace in DIRECTORY: a git repository with COORDINATION.md, harness.yaml, problems/ and ledger/.

    What is there already is left as it is; what is new is committed on the branch that is checked out.
    """
    from harness.ledger.create_workspace import create_workspace

    suites = tuple(word.strip() for word in problems.split(",") if word.strip() not in {"", "none"})
    made = create_workspace(directory, suites=suites, small=profile == "small", github=github)
    root = made.workspace.root
    if not made.added:
        echo(f"{root} is a workspace already; nothing was missing")
        return
    echo(f"workspace {root}, branch {made.branch}: added {', '.join(made.added)}")
    if made.left_out:
        _print_left_out(made.left_out)
    shown = "" if root == Path.cwd() else f"cd {shlex.quote(str(directory))} && "
    echo(f"next: {shown}harness doctor    then: harness start")


def _print_left_out(left_out: Mapping[str, str]) -> None:
    """One line for each reason, with the number of problems and the first of them."""
    reasons: dict[str, list[str]] = {}
    for key, reason in left_out.items():
        reasons.setdefault(reason, []).append(key)
    for reason, keys in reasons.items():
        names = ", ".join(keys[:_NAMES_SHOWN]) + (" ..." if len(keys) > _NAMES_SHOWN else "")
        echo(f"left out {len(keys)} problems, each because {reason}: {names}")
