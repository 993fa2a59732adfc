"""`harness daemon`, `planner`, `worker` and `stop`: the parts of `harness start`, alone."""

from __future__ import annotations

import logging
import signal
import threading

import click

from harness.store.workspace import Workspace


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set, in place of ending the process: what runs ends cleanly."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def log_to_file(workspace: Workspace, part: str) -> None:
    """Append what a part says, with time and traceback, to `.harness/logs/<part>.log`; warnings also to stderr."""
    workspace.logs.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(workspace.logs / f"{part}.log", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(process)d: %(message)s"))
    screen = logging.StreamHandler()
    screen.setFormatter(logging.Formatter(f"harness {part}: %(message)s"))
    screen.setLevel(logging.WARNING)
    logger = logging.getLogger("harness")
    logger.setLevel(logging.INFO)
    logger.addHandler(file)
    logger.addHandler(screen)


@click.command()
@click.option("--device", "devices", multiple=True, metavar="DEVICE", help="cpu, cuda, cuda:0,1; one judge for each.")
@click.option("--run", "run_name", metavar="NAME", help="The run whose branches are judged.")
@click.option(
    "--max-evaluations", type=click.IntRange(min=1), metavar="N", help="Judge at most so many candidates, and confirm."
)
@click.option("--once", is_flag=True, help="End when nothing is left to judge.")
def daemon(devices: tuple[str, ...], run_name: str | None, max_evaluations: int | None, *, once: bool) -> None:
    """Run the benchmark daemon alone: judge what the run's branches hold, and enter it into the ledger."""
    from harness.daemon.daemon import run_daemon
    from harness.store.configuration import load_config
    from harness.store.parentage import die_with_parent

    die_with_parent()
    stop = stop_on_signals()
    workspace = Workspace.find()
    overrides: dict[str, object] = {"run": run_name} if run_name else {}
    config = load_config(workspace, overrides)
    log_to_file(workspace, "daemon")
    run_daemon(workspace, config, devices=devices, max_evaluations=max_evaluations, once=once, stop=stop)
