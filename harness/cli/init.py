"""`harness init`: creates a workspace, or the missing parts of one."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import click

from harness.cli.completion_values import complete_shipped_suite
from harness.cli.display.output import echo
from harness.ledger.create_workspace import create_workspace
from harness.model.printable import count_of, first_names

_NAMES_SHOWN = 3


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--problems",
    metavar="SUITE[,SUITE]...",
    default="starter",
    show_default=True,
    shell_complete=complete_shipped_suite,
    help="Shipped problems to copy: suites (see `harness problems suites --shipped`), all, or none.",
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
    """Create a workspace in DIRECTORY: a git repository with COORDINATION.md, harness.yaml, problems/ and ledger/.

    Existing files are not changed; new files are committed on the present branch. Committed files that the checkout
    lacks are restored.
    """
    suites = tuple(word.strip() for word in problems.split(",") if word.strip() not in {"", "none"})
    created = create_workspace(directory, suites=suites, small=profile == "small", github=github)
    root = created.workspace.root
    if not created.added and not created.restored:
        echo(f"{root} is already a complete workspace; no file was added")
        return
    changes = {"added": created.added, "restored from the branch": created.restored}
    summary = "; ".join(f"{verb} {', '.join(paths)}" for verb, paths in changes.items() if paths)
    echo(f"workspace {root}, branch {created.branch}: {summary}")
    if created.left_out:
        _print_left_out(created.left_out)
    change_directory = "" if root == Path.cwd() else f"cd {shlex.quote(str(directory))} && "
    echo(f"next: {change_directory}harness doctor    then: harness start")


def _print_left_out(left_out: Mapping[str, str]) -> None:
    """Print a line for each reason, with the number of problems and the names of the first ones."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for key, reason in left_out.items():
        reasons[reason].append(key)
    for reason, keys in reasons.items():
        echo(f"omitted {count_of(len(keys), 'problem')} ({reason}): {first_names(keys, _NAMES_SHOWN)}")
