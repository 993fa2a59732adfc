"""`harness planner simulate`: comparison of policies in simulated worlds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.display.output import echo, emit, json_option
from harness.cli.options import COUNT, NOT_NEGATIVE, OUTPUT_FILE, POSITIVE
from harness.errors import ConfigurationError
from harness.model.printable import interval_of
from harness.report.simulation_page import render_simulation
from harness.workspace.files import atomic_write

if TYPE_CHECKING:
    from harness.simulation.compare import PolicyOutcome
    from harness.simulation.engine import SimulationSettings

_SEED_SETS = ("development", "held-out")
_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "world": lambda row: row["world"],
    "policy": lambda row: row["policy"],
    "at 1/2": lambda row: f"{row['half']:.3f}",
    "at the end": lambda row: f"{row['end']:.3f}",
    "ratio at 1/2": lambda row: f"{row['ratio_half']:.3f}",
    "95 % interval": lambda row: interval_of(row["ratio_half_ci95"]),
    "ratio at 1/2 USD": lambda row: f"{row['ratio_half_usd']:.3f}",
    "ahead": lambda row: f"{row['wins']} of {row['seeds']}",
    "faster": lambda row: f"{row['faster']:.0%}",
    "above 2x": lambda row: f"{row['above_2x']:.0%}",
    "score": lambda row: f"{row['median_score']:.2f}",
    "evaluations": lambda row: f"{row['evaluations']:.0f}",
}


@click.command()
@click.option("--world", "worlds", multiple=True, metavar="NAME", help="A world; may be given often. By default all.")
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME", help="A policy; may be given often. By default all."
)
@click.option(
    "--seeds",
    "seed_set",
    type=click.Choice(_SEED_SETS),
    default="development",
    show_default=True,
    help="Set of seeds: 8 for the development of policies, or 20 that were not used in their development.",
)
@click.option("--seed-count", type=COUNT, metavar="N", help="The first N of the seeds only.")
@click.option("--problems", type=COUNT, metavar="N", help="Number of problems; by default 235.")
@click.option("--gpus", type=COUNT, metavar="N", help="Number of GPUs; by default 27.")
@click.option("--workers", type=COUNT, metavar="N", help="Number of workers; by default 100.")
@click.option("--days", type=POSITIVE, metavar="X", help="Length; by default 21 days.")
@click.option("--usd-per-gpu-hour", type=NOT_NEGATIVE, metavar="X", help="By default 5.")
@click.option("--usd-per-agent-hour", type=NOT_NEGATIVE, metavar="X", help="By default 6.")
@click.option("--jobs", type=COUNT, metavar="N", help="Processes; by default one for each core.")
@click.option("-o", "--output", type=OUTPUT_FILE, help="Also write a page with curves and tables (HTML).")
@json_option
def simulate(
    worlds: tuple[str, ...],
    policies: tuple[str, ...],
    seed_set: str,
    seed_count: int | None,
    days: float | None,
    jobs: int | None,
    output: Path | None,
    *,
    as_json: bool,
    **figures: Any,  # noqa: ANN401 - the options that are named as fields of the settings
) -> None:
    """Compare policies at equal cost in simulated runs, without a device, a model or a workspace.

    Each policy is the function that the planner calls. The worlds are fitted to the public result under round robin
    (docs/explanation/simulation.md). A full-size run takes about 10 s of processor time.
    """
    from harness.planner.policies import POLICIES, ROUND_ROBIN, policy_named
    from harness.simulation.compare import outcomes, run_all
    from harness.simulation.engine import DEVELOPMENT_SEEDS, HELD_OUT_SEEDS, SimulationSettings
    from harness.simulation.worlds import WORLDS

    for world in worlds:
        if world not in WORLDS:
            raise ConfigurationError(f"no world `{world}`; there are: {', '.join(WORLDS)}", where="--world")
    named = [policy_named(policy)[0] for policy in policies] or list(POLICIES)
    named = list(dict.fromkeys([*named, ROUND_ROBIN]))  # every ratio is to round robin
    seeds = (HELD_OUT_SEEDS if seed_set == "held-out" else DEVELOPMENT_SEEDS)[:seed_count]
    figures["hours"] = None if days is None else 24.0 * days
    settings = replace(SimulationSettings(), **{name: value for name, value in figures.items() if value is not None})
    runs = {}
    total = len(worlds or WORLDS) * len(named) * len(seeds)
    for key, run in run_all(worlds or tuple(WORLDS), named, seeds, settings, jobs or os.cpu_count() or 1):
        runs[key] = run
        reached = f"{run.final.geometric_mean:.3f} after {run.samples[-1].evaluations} evaluations"
        echo(f"{len(runs)} of {total}: {key.world}, {key.policy}, seed {key.seed}: {reached}", err=True)
    compared = outcomes(runs, settings)
    emit([asdict(outcome) for outcome in compared], as_json=as_json, columns=_COLUMNS)
    if output is not None:
        _write(output, compared, settings, f"{len(seeds)} {seed_set} seeds, from {seeds[0]}")


def _write(output: Path, compared: list[PolicyOutcome], settings: SimulationSettings, seeds: str) -> None:
    from harness.planner.policy import NAME
    from harness.simulation.published import PUBLISHED
    from harness.simulation.worlds import WORLDS

    shown: list[dict[str, Any]] = [
        {
            "name": name,
            "title": WORLDS[name].title,
            "assumptions": WORLDS[name].assumptions,
            "outcomes": [asdict(outcome) for outcome in compared if outcome.world == name],
        }
        for name in dict.fromkeys(outcome.world for outcome in compared)
    ]
    data = {
        "settings": {**asdict(settings), "policy": settings.policy.model_dump()},
        "seeds": seeds,
        "shipped": NAME,
        "published": asdict(PUBLISHED),
        "worlds": shown,
    }
    atomic_write(output.absolute(), render_simulation(data))
    echo(f"{output}: open it in a browser", err=True)
