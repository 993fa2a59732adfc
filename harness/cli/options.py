"""Options that several commands have."""

from __future__ import annotations

import click

cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Judge on the devices of a Ray cluster: `auto` (the one that runs on this host), or HOST:PORT.",
)
