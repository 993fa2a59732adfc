"""`harness report`: writes a self-contained HTML page about a run."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.display.output import echo
from harness.cli.merge_commands import opened, single_target
from harness.cli.options import OUTPUT_FILE, run_option, target_option
from harness.errors import ConfigurationError
from harness.formats.problems import list_problems
from harness.ledger.standings import known_problems
from harness.report.collect import collect
from harness.report.merge_branches import remotes, web_address
from harness.report.merging import pick_remote
from harness.report.page import render
from harness.workspace.files import atomic_write


@click.command()
@click.option("-o", "--output", type=OUTPUT_FILE, default=Path("report.html"))
@run_option
@target_option
@click.option("--commit-url", metavar="URL", help="URL of a commit's page, with {} for the id.")
def report(output: Path, *, run: str | None, target: str | None, commit_url: str | None) -> None:
    """Write an HTML file about a run: headline, trajectories, table, steps, spend. The file works offline."""
    with opened() as (workspace, config, repo, index):
        run = run or config.run
        remote = pick_remote(repo, None)
        web = web_address(remotes(repo).get(remote, "")) if remote else None
        if commit_url is None and web is not None:
            commit_url = f"{web}/-/commit/{{}}" if "gitlab" in web else f"{web}/commit/{{}}"
        if commit_url is not None and ("{}" not in commit_url or not commit_url.startswith(("https://", "http://"))):
            raise ConfigurationError(f"`{commit_url}` is not a URL with {{}} in it", where="--commit-url")
        keys = list_problems(workspace.problems, config.problems)
        data = collect(
            repo,
            index,
            branch=config.coordination_branch,
            problems=sorted({*keys, *known_problems(index)}),
            run=run,
            target=target or single_target(config, index, run),
            commit_url=commit_url,
        )
    atomic_write(output.absolute(), render(data))
    count = len(data["problems"])
    shown = f"{count} problem{'' if count == 1 else 's'}"
    echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB, {shown}; open it in a browser")
