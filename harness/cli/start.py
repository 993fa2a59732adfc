"""`harness start`: everything at once, until done or stopped."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from harness.cli.completion_values import complete_glob
from harness.cli.display.output import echo, echo_json, json_option
from harness.cli.options import CLUSTER
from harness.model.printable import printable

if TYPE_CHECKING:
    from harness.ledger.standings import Standing
    from harness.model.config import Config
    from harness.supervise import Limits, Outcome, Snapshot
    from harness.workspace.directories import Workspace


@click.command()
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="How many workers.")
@click.option("--agent", type=click.Choice(["claude", "command", "tuner"]), help="The kind of agent.")
@click.option("--device", "devices", multiple=True, metavar="DEVICE", help="cpu, cuda, cuda:0,1; one judge for each.")
@click.option("--cluster", metavar="ADDRESS", help=CLUSTER)
@click.option("--run", "run_name", metavar="NAME", help="The run: branches and entries carry its name.")
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="GLOB",
    shell_complete=complete_glob,
    help="Problems to work on; may be given often.",
)
@click.option(
    "--max-evaluations", type=click.IntRange(min=1), metavar="N", help="End after so many; confirmations come on top."
)
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), metavar="M", help="End after so long.")
@click.option(
    "--max-usd",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Spend at most so much; the run ends when no further request fits.",
)
@click.option(
    "--metrics",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve figures for Prometheus at http://127.0.0.1:PORT/metrics.",
)
@click.option("--detach", is_flag=True, help="Return when the run is up; it needs this terminal no longer.")
@json_option
def start(
    workers: int | None,
    agent: str | None,
    devices: tuple[str, ...],
    cluster: str | None,
    run_name: str | None,
    problems: tuple[str, ...],
    max_evaluations: int | None,
    max_minutes: float | None,
    max_usd: float | None,
    metrics: int | None,
    *,
    detach: bool,
    as_json: bool,
) -> int:
    """Run planner, workers, daemon and judges. Limits count this invocation; started again, it goes on.

    Exit code 2 when a failure prevented all work: no judge became ready, every session failed and nothing was
    evaluated, or a limit left no room for one request. The last lines say what is pending and what to do next.
    """
    from harness.agents.kinds import kind_of
    from harness.cli.attach import start_detached
    from harness.cli.cluster import choose_cluster
    from harness.cli.devices import choose
    from harness.cli.preflight.requirements import check_run
    from harness.cli.process_commands import log_to_file
    from harness.cli.spend_limit import ask_for_a_limit
    from harness.errors import EXIT_INTERRUPTED
    from harness.supervise import Limits, run_start
    from harness.workspace.configuration import load_config
    from harness.workspace.directories import Workspace
    from harness.workspace.run_result import recorded_result

    workspace = Workspace.find()
    if detach:
        return start_detached(workspace, as_json=as_json)
    given = {
        "workers": workers,
        "agent.kind": agent,
        "devices": devices or None,
        "run": run_name,
        "problems": problems or None,
    }
    config = load_config(workspace, given)
    chosen = choose_cluster(config, cluster) if cluster else choose(config)
    check_run(workspace, config, chosen, lambda line: echo(line, err=True))
    kind = kind_of(config, chosen.devices, root=workspace.root)
    decided = {"agent.kind": kind} if cluster else {"agent.kind": kind, "devices": chosen.devices}
    config = load_config(workspace, {**given, **decided})
    log_to_file(workspace, "start")
    logging.getLogger("harness").info("start: %s", chosen.why)
    stop, how = _stop_on_signals()
    budget = config.agent.overall
    limits = Limits(max_evaluations or budget.evaluations, max_minutes or budget.minutes, max_usd)
    ask_for_a_limit(config, limits)
    with recorded_result(workspace) as record:
        with _display(limits, as_json=as_json) as show:
            outcome = run_start(
                workspace,
                config,
                target=chosen.target,
                limits=limits,
                stop=stop,
                show=show,
                metrics_port=metrics,
                cluster=cluster,
            )
        _finish(workspace, config, chosen.target, outcome, as_json=as_json)
        if outcome.failure is not None:
            raise outcome.failure
        interrupted = outcome.interrupted and how["signal"] == "SIGINT"
        return record(outcome.reason, EXIT_INTERRUPTED if interrupted else 0)


def _stop_on_signals() -> tuple[threading.Event, dict[str, str]]:
    """An event that SIGTERM and Ctrl-C set, and which of them did."""
    import signal

    stop, how = threading.Event(), {"signal": ""}

    def handle(number: int, _: object) -> None:
        how["signal"] = signal.Signals(number).name
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop, how


@contextmanager
def _display(limits: Limits, *, as_json: bool) -> Iterator[Callable[[Snapshot], None]]:
    """Live on a terminal, a line for each change elsewhere; nothing with --json."""
    if as_json:
        yield lambda _: None
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(refresh_per_second=4, transient=True) as live:
            yield lambda snapshot: live.update(_panel(snapshot, limits))
    else:
        said: dict[str, str] = {}

        def show(snapshot: Snapshot) -> None:
            for about, line in _lines(snapshot).items():
                if said.get(about) != line:
                    said[about] = line
                    echo(f"[{snapshot.elapsed_s:5.0f} s] {line}")

        yield show


def _doing(snapshot: Snapshot) -> str:
    daemon = snapshot.daemon
    if daemon is None or daemon.current is None:
        ready = daemon is not None and any(judge.state == "idle" for judge in daemon.judges)
        return "the judge is idle" if ready else "the judge is starting"
    of_worker = f" of {daemon.current.worker}" if daemon.current.worker else ""
    return f"judging {daemon.current.problem} ({daemon.current.kind}{of_worker})"


def _stage(snapshot: Snapshot) -> str:
    current = snapshot.daemon.current if snapshot.daemon is not None else None
    if current is None or current.stage is None:
        return ""
    return f": {current.stage}" + (f" {current.done}/{current.of}" if current.of else "")


def _lines(snapshot: Snapshot) -> dict[str, str]:
    """What is worth a line in a log whenever it changes: what it is about -> the line."""
    lines = {"judge": _doing(snapshot)}
    for name, status in sorted(snapshot.workers.items()):
        if status is not None and status.problem:
            lines[f"{name} at"] = f"{name} on {status.problem}"
        if status is not None and status.last_message:
            lines[name] = f"{name}: {status.last_message}"
    for problem, speedup in _confirmed(snapshot).items():
        lines[f"{problem} confirmed"] = f"confirmed: {problem} {speedup}"
    lines |= {message: message for message in snapshot.messages}
    return {about: printable(line) for about, line in lines.items()}


def _confirmed(snapshot: Snapshot) -> dict[str, str]:
    return snapshot.planner.confirmed if snapshot.planner is not None else {}


def _left(elapsed_s: float, done: int, limits: Limits) -> str:
    """What the limits leave, or nothing where there are none."""
    parts = []
    if limits.max_minutes is not None:
        seconds = max(0, round(limits.max_minutes * 60 - elapsed_s))
        parts.append(f"{seconds // 60}:{seconds % 60:02d} left")
    if limits.max_evaluations is not None:
        parts.append(f"{max(0, limits.max_evaluations - done)} evaluations left")
    return "   ".join(parts)


def _panel(snapshot: Snapshot, limits: Limits) -> Any:  # noqa: ANN401 - a rich renderable
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
    for heading in ("worker", "state", "problem"):
        table.add_column(heading, no_wrap=True)
    table.add_column("last", no_wrap=True, overflow="ellipsis", ratio=1)
    for name, status in sorted(snapshot.workers.items()):
        cells = (status.state, status.problem, status.last_message) if status is not None else ("starting", "", "")
        table.add_row(name, *(Text(printable(cell or "-")) for cell in cells))
    done, queued = (snapshot.daemon.evaluations_done, snapshot.daemon.queued) if snapshot.daemon is not None else (0, 0)
    head = f"{snapshot.elapsed_s:.0f} s   {done} evaluations, {queued} queued   "
    return Group(
        Text(head + _left(snapshot.elapsed_s, done, limits)),
        Text(printable(_doing(snapshot) + _stage(snapshot))),
        table,
        *(Text(f"confirmed: {problem} {speedup}", style="green") for problem, speedup in _confirmed(snapshot).items()),
        *(Text(printable(message), style="yellow") for message in snapshot.messages[-3:]),
    )


def _finish(workspace: Workspace, config: Config, target: str, outcome: Outcome, *, as_json: bool) -> None:
    """The final standings, what could not be beaten, what is not judged yet, and what to do next."""
    from harness.cli.display.last_lines import next_line, pending_candidates, pending_line
    from harness.cli.display.standings import print_standings
    from harness.cli.preflight.workspace import run_problems
    from harness.git.repo import Repo
    from harness.ledger.index import Index
    from harness.ledger.standings import standings
    from harness.ledger.standings_table import for_scripts, outdated_note, totals, weakness_notes

    with Repo(workspace) as repo, Index(workspace, branch=config.coordination_branch) as index:
        index.refresh(repo)
        table = standings(index, run_problems(workspace, config), target, config.run)
        sentences = repo.checkout_state(config.coordination_branch)
        pending = pending_candidates(repo, index, config, target)
    if as_json:
        failure = str(outcome.failure) if outcome.failure is not None else None
        waiting = [{key: getattr(one, key) for key in ("problem", "worker", "commit", "tree")} for one in pending]
        shown = {
            "ended": outcome.reason,
            "failure": failure,
            "target": target,
            "problems": [for_scripts(one) for one in table],
            "pending": waiting,
        }
        echo_json(json.dumps({**shown, "checkout": sentences}, indent=2, default=str))
        return
    echo(f"ended: {outcome.reason}")
    print_standings(table)
    not_judged = [pending_line(pending)] if pending else []
    notes = [*outdated_note(table), *weakness_notes(table)]
    for line in [totals(table), *notes, *_unbeaten(table), *not_judged, *sentences, next_line(table)]:
        echo(line)


def _unbeaten(table: tuple[Standing, ...]) -> list[str]:
    """Which problems have no confirmed speed-up, and why as far as the ledger says it."""
    lines = []
    for one in table:
        if one.champion is not None or (one.best is None and one.outdated):
            continue
        if one.evaluations == 0:
            why = "not evaluated yet"
        elif one.best is None:
            why = "no candidate passed"
        elif (one.best.speedup_ci95_low or 0.0) > 1:
            why = f"{one.best.speedup:.3f}x, its confirmation has not been made or did not hold"
        else:
            why = "no candidate is surely faster than the baseline"
        lines.append(f"not beaten: {one.problem}: {why}")
    return lines
