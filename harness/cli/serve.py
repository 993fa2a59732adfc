"""`harness serve`: the report as a live page."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click

from harness.cli.display.output import echo, echo_lines
from harness.cli.display.progress import progress_bar
from harness.cli.options import RUN
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.model.config import Config
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace

PORT = 8470


@click.command()
@click.argument(
    "workspace", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path(), metavar="[WORKSPACE]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 selects a free port.", metavar="N"
)
@click.option("--bind", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="IP address to listen at.")
@click.option("--run", type=RUN, metavar="NAME", help="The run; by default the one in progress, else harness.yaml's.")
@click.option(
    "--target", metavar="NAME", help="The target; by default that of the run in progress or of its last entry."
)
def serve(workspace: Path, *, port: int, bind: str, run: str | None, target: str | None) -> None:
    """Serve a live, read-only page about a run at the printed URL. Ctrl-C ends the server.

    The page shows champions and bounds, trajectories, workers, queue, spend and limits, and recent verdicts. It needs
    the token in the URL. Without --bind, only this machine can connect.
    """
    from harness.report.live.collector import Collector
    from harness.report.live.server import listen, serve_page

    directory = Workspace.find(workspace)
    config = load_config(directory)
    with ExitStack() as stack:
        listener = stack.enter_context(listen(bind, port))
        repo = stack.enter_context(Repo(directory))
        repo.check_coordination_branch(config.coordination_branch)
        index = stack.enter_context(Index(directory, branch=config.coordination_branch))
        collector = Collector(directory, repo, index, run=run, target=target)
        with progress_bar("reading the ledger") as progress:
            texts = collector.collect(progress)
        warnings = _warnings(config, bind, port=listener.getsockname()[1])
        echo_lines((f"harness: {message}" for message in (*collector.messages, *warnings)), err=True)
        stack.pop_all()  # `serve_page` closes all of them
        serve_page(listener, collector, texts, _announce)


def _announce(url: str) -> None:
    echo(f"watch the run at {url}")
    echo("Ctrl-C ends this server and does not end the run", err=True)


def _warnings(config: Config, bind: str, port: int) -> Iterator[str]:
    """Yield a warning for each setting that weakens the page's protection."""
    if not ipaddress.ip_address(bind).is_loopback:
        yield (
            f"warning: other machines can connect to {bind}, and the connection is not encrypted: "
            f"`ssh -L {port}:127.0.0.1:{port} HOST` from the other machine is safer than --bind"
        )
    if config.agent.network == "host":
        yield "warning: agents have this machine's network (agent.network: host): only the token protects the page"
    if config.judge.sandbox == "none":
        yield "warning: candidates run without a sandbox (judge.sandbox: none): only the token protects the page"
