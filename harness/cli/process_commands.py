"""`harness daemon`, `planner`, `worker` and `stop`: the single processes of `harness start`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.devices import with_all_gpus
from harness.cli.display.output import echo, emit, json_option
from harness.cli.options import (
    COUNT,
    POSITIVE,
    RUN,
    WORKER,
    agent_option,
    cluster_option,
    devices_option,
    metrics_option,
)
from harness.cli.simulate import simulate
from harness.errors import AnswerIsNo, FormatError
from harness.git.repo import Repo
from harness.model.config import Config
from harness.model.printable import printable
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace
from harness.workspace.log_files import LOG_BYTES, LOGS_KEPT
from harness.workspace.processes import end_with_parent

if TYPE_CHECKING:
    from harness.planner.advice import Advice, Adviser
    from harness.planner.decision import Decision, PolicyInputs


_max_usd = click.option(
    "--max-usd",
    type=POSITIVE,
    metavar="X",
    help="End sessions when the run has spent this amount in USD; the default is `agent.overall.usd`.",
)


def stop_on_signals() -> tuple[threading.Event, list[int]]:
    """Return an event that SIGTERM and Ctrl-C set instead of ending the process, and the signals received so far."""
    stop, received = threading.Event(), list[int]()

    def handle(number: int, _: object) -> None:
        received.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop, received


class _PrintableFormatter(logging.Formatter):
    """Escapes control characters, and indents further lines so that they do not look like separate records."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message, keep_newlines=True).replace("\n", "\n  ")
        return super().formatMessage(record)


class _LogFile(RotatingFileHandler):
    """A rotating log file that drops records on a full disk, without a traceback for each record."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def log_to_file(workspace: Workspace, part: str) -> None:
    """Log to `.harness/logs/<part>.log`, a rotated file; log warnings to stderr too.

    Args:
        part: name of the process, such as `daemon` or `worker-w01`.
    """
    workspace.logs.mkdir(parents=True, exist_ok=True)
    file = _LogFile(workspace.logs / f"{part}.log", maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8")
    file.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(name)s %(process)d: %(message)s"))
    screen = logging.StreamHandler()
    screen.setFormatter(_PrintableFormatter(f"harness {part}: %(message)s"))
    screen.setLevel(logging.WARNING)
    logger = logging.getLogger("harness")
    logger.setLevel(logging.INFO)
    logger.addHandler(file)
    logger.addHandler(screen)


@click.command()
@devices_option
@cluster_option
@click.option("--run", "run_name", type=RUN, metavar="NAME", help="The run whose branches are judged.")
@click.option(
    "--max-evaluations", type=COUNT, metavar="N", help="Judge at most N candidates; confirmations do not count."
)
@metrics_option
@click.option("--once", is_flag=True, help="End when no candidate is left to judge.")
def daemon(
    devices: tuple[str, ...],
    cluster: str | None,
    run_name: str | None,
    max_evaluations: int | None,
    metrics: int | None,
    *,
    once: bool,
) -> None:
    """Run the benchmark daemon alone: judge the candidates on the run's branches and append entries to the ledger."""
    from harness.cli.cluster import open_cluster
    from harness.daemon.run import current_invocation, run_daemon

    invocation = current_invocation()
    end_with_parent()
    stop, _ = stop_on_signals()
    workspace = Workspace.find()
    config = load_config(workspace, {"run": run_name})
    log_to_file(workspace, "daemon")
    run_daemon(
        workspace,
        config,
        devices=with_all_gpus(devices),
        max_evaluations=max_evaluations,
        once=once,
        invocation=invocation,
        metrics_port=metrics,
        open_judges=open_cluster(workspace, config, cluster) if cluster else None,
        stop=stop,
    )


@click.group(invoke_without_command=True)
@click.option(
    "--replay",
    is_flag=False,
    flag_value=".",
    metavar="[WORKSPACE]",
    help="Repeat the recorded decisions of a workspace, and report the decisions that differ now.",
)
@click.option("--run", "run_name", type=RUN, metavar="NAME", help="The run to plan.")
@click.option("--target", metavar="NAME", help="The target of the standings; by default harness.yaml's, else cpu.")
@click.option("--problem", "problems", multiple=True, metavar="GLOB", help="Problems to plan; may be given often.")
@click.option(
    "--worker", "workers", type=WORKER, multiple=True, metavar="NAME", help="Workers to assign; by default w01, w02 ..."
)
@_max_usd
@json_option
@click.pass_context
def planner(
    context: click.Context,
    run_name: str | None,
    target: str | None,
    problems: tuple[str, ...],
    workers: tuple[str, ...],
    max_usd: float | None,
    *,
    replay: str | None,
    as_json: bool,
) -> None:
    """Run the planner alone: assign workers in COORDINATION.md as the ledger grows.

    The command `simulate` compares policies without a workspace.
    """
    if context.invoked_subcommand is not None:
        return
    from harness.planner.planner import run_planner
    from harness.supervise import worker_names

    end_with_parent()
    workspace = Workspace.find(Path(replay) if replay else None)
    overrides = {"run": run_name, "problems": problems or None, "target": target, "agent.overall.usd": max_usd}
    config = load_config(workspace, overrides)
    if replay:
        _replay(workspace, config, as_json=as_json)
        return
    stop, _ = stop_on_signals()
    log_to_file(workspace, "planner")
    names = workers or worker_names(config.workers)
    adviser = model_adviser(workspace, config, stop) if config.planner.kind == "claude" else None
    run_planner(workspace, config, stop, workers=names, target=config.target or "cpu", adviser=adviser)


planner.add_command(simulate)


def model_adviser(workspace: Workspace, config: Config, stop: threading.Event) -> Adviser:
    """Return the function with which the planner requests advice from a model.

    It is defined here because the packages planner and agents do not import each other.

    Raises:
        ConfigurationError: a requirement of kind `claude` is missing.
    """
    from harness.agents.adviser import PlanningModel
    from harness.agents.kinds import check_claude
    from harness.planner.advice import Proposal, accepted, read_proposal

    check_claude(config)
    model = PlanningModel(workspace, config, Proposal.model_json_schema(), stop)

    def advise(inputs: PolicyInputs, decision: Decision) -> Advice | None:
        valid: list[Advice] = []

        def check(proposal: dict[str, object]) -> str | None:
            try:
                valid.append(accepted(read_proposal(proposal), inputs, "claude"))
            except FormatError as error:
                return error.message
            return None

        situation = {**inputs.model_dump(mode="json"), "the policy proposes": decision.model_dump(mode="json")}
        name = model.ask(situation, check)
        return replace(valid[-1], by=f"claude: {name}") if name is not None and valid else None

    return advise


def _replay(workspace: Workspace, config: Config, *, as_json: bool) -> None:
    """Print each recorded decision and whether the policy repeats it."""
    from harness.planner.replay import replay as decide_again

    with Repo(workspace) as repo:
        repo.check_coordination_branch(config.coordination_branch)
        decisions = decide_again(workspace, repo, config)
    rows = [
        {
            "seq": decision.seq,
            "at": decision.at,
            "policy": decision.policy,
            "assignments": ", ".join(f"{row.worker}: {row.problem}" for row in decision.recorded.assignments),
            "same": "-" if decision.by_model else "yes" if decision.is_equal else "no",
        }
        for decision in decisions
    ]
    emit(rows, as_json=as_json, empty=f"no decisions of run {config.run} are recorded")
    changed = sum(not decision.is_equal and not decision.by_model for decision in decisions)
    if changed:
        raise AnswerIsNo(f"{changed} of {len(decisions)} decisions differ from the recorded ones")


@click.command()
@click.argument("name", type=WORKER)
@agent_option
@click.option("--run", "run_name", type=RUN, metavar="NAME", help="The run to work for.")
@click.option("--target", metavar="NAME", help="The target; by default harness.yaml's, else cpu.")
@_max_usd
def worker(name: str, agent: str | None, run_name: str | None, target: str | None, max_usd: float | None) -> None:
    """Run the worker NAME alone: work on the problem that its row in COORDINATION.md assigns."""
    from harness.agents.worker import run_worker

    end_with_parent()
    stop, _ = stop_on_signals()
    workspace = Workspace.find()
    overrides = {"run": run_name, "agent.kind": agent, "target": target, "agent.overall.usd": max_usd}
    config = load_config(workspace, overrides)
    log_to_file(workspace, f"worker-{name}")
    run_worker(workspace, config, name, stop, target=config.target or "cpu")


@click.command()
@click.option(
    "--within", "within_s", type=POSITIVE, default=90.0, show_default=True, metavar="S", help="Timeout in seconds."
)
def stop(within_s: float) -> None:
    """End a running `harness start` cleanly, and wait until it has ended."""
    from harness.supervise import stop_running

    workspace = Workspace.find()
    if not stop_running(workspace, within_s):
        raise AnswerIsNo("no `harness start` runs in this workspace", where=str(workspace.root))
    echo("stopped; `harness start` continues the run")
