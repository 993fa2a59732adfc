"""Types of options, and options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from harness.model.paths import RUN_FORM, WORKER_FORM, is_run, is_worker


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


class _Name(click.types.StringParamType):
    """Names of one kind, such as runs, checked by the rule of `harness.model.paths`."""

    def __init__(self, kind: str, is_valid: Callable[[str], bool], form: str) -> None:
        self.name, self._is_valid, self._form = kind, is_valid, form

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as in click's own type
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        name = str(super().convert(value, param, ctx))
        if not self._is_valid(name):
            message = f"`{name}` cannot name a {self.name}; expected {self._form}, the first a letter or a digit."
            self.fail(message, param, ctx)
        return name


COUNT = click.IntRange(min=1)
POSITIVE = _FiniteRange(min=0, min_open=True)
NOT_NEGATIVE = _FiniteRange(min=0)
RUN = _Name("run", is_run, RUN_FORM)
WORKER = _Name("worker", is_worker, WORKER_FORM)
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
run_option = click.option("--run", type=RUN, metavar="NAME", help="The run; by default harness.yaml's.")
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
