"""Types of options, and options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

COUNT = click.IntRange(min=1)
POSITIVE = click.FloatRange(min=0, min_open=True)
OUTPUT_FILE = click.Path(path_type=Path, dir_okay=False)

agent_option = click.option("--agent", type=click.Choice(["claude", "command", "tuner"]), help="The kind of agent.")
cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Judge on the devices of a Ray cluster: `auto` (the one that runs on this host), or HOST:PORT.",
)
devices_option = click.option(
    "--device", "devices", multiple=True, metavar="DEVICE", help="cpu, cuda, cuda:0,1; one judge for each."
)
metrics_option = click.option(
    "--metrics",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve figures for Prometheus at http://127.0.0.1:PORT/metrics.",
)
run_option = click.option("--run", metavar="NAME", help="The run; by default harness.yaml's.")
sandbox_option = click.option(
    "--sandbox",
    type=click.Choice(["bubblewrap", "none"]),
    default="bubblewrap",
    show_default=True,
    help="none: run the code without a sandbox; only for code that you trust.",
)
target_option = click.option(
    "--target", metavar="NAME", help="The target; by default harness.yaml's, else the run's only one."
)
