"""Types of options, and options that several commands have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click


class _FiniteRange(click.FloatRange):
    """Finite numbers in a range. Comparisons with NaN are false, so that click's own range accepts it."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as in click's own type
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


COUNT = click.IntRange(min=1)
POSITIVE = _FiniteRange(min=0, min_open=True)
NOT_NEGATIVE = _FiniteRange(min=0)
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
