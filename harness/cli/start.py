"""`harness start`: runs planner, workers, daemon and judges until the run ends or is stopped."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from harness.cli.attach import start_detached
from harness.cli.completion_values import complete_glob
from harness.cli.devices import choose_devices
from harness.cli.display.output import echo, echo_document, echo_lines, json_option
from harness.cli.display.standings import standing_lines
from harness.cli.display.tables import screen_width
from harness.cli.options import COUNT, POSITIVE, agent_option, cluster_option, devices_option, metrics_option
from harness.cli.process_commands import log_to_file, stop_on_signals
from harness.errors import EXIT_INTERRUPTED, ConfigurationError
from harness.git.repo import Repo
from harness.ledger.candidates import CommittedCandidate, committed_candidates
from harness.ledger.index import Index
from harness.ledger.standings import Standing, standings
from harness.ledger.standings_table import for_scripts, outdated_note, totals, weakness_notes
from harness.model.config import Budget, Config
from harness.model.paths import run_branches
from harness.model.printable import count_of, first_names, printable
from harness.model.process_status import DaemonStatus
from harness.run_end import Limits, Outcome, Snapshot
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace
from harness.workspace.status import recorded_result

_PAID = {"claude", "command"}
_FIX = "harness start --max-usd 5, or agent: {overall: {usd: 100}} in harness.yaml"
_NAMED = 5


@click.command()
@click.option("--workers", type=COUNT, metavar="N", help="Number of workers.")
@agent_option
@devices_option
@cluster_option
@click.option("--run", "run_name", metavar="NAME", help="Name of the run, part of its branches and entries.")
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="GLOB",
    shell_complete=complete_glob,
    help="Problems to work on; may be given often.",
)
@click.option("--max-evaluations", type=COUNT, metavar="N", help="End after N evaluations; confirmations do not count.")
@click.option("--max-minutes", type=POSITIVE, metavar="M", help="End after M minutes.")
@click.option(
    "--max-usd",
    type=POSITIVE,
    metavar="X",
    help="Limit in USD; the run ends when the remainder is too small for another request.",
)
@metrics_option
@click.option("--detach", is_flag=True, help="Run in the background; return when the run has started.")
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
    """Run planner, workers, daemon and judges. Limits apply to this invocation; a second invocation continues the run.

    The exit code is 2 if a failure prevented all work: no judge became ready, every session failed and nothing was
    evaluated, or a limit was too small for one request. The last lines list pending submissions and the next command.
    """
    from harness.agents.kinds import kind_of
    from harness.cli.cluster import choose_cluster
    from harness.cli.preflight.requirements import check_run
    from harness.supervise import run_start

    workspace = Workspace.find()
    if detach:
        return start_detached(workspace, as_json=as_json)
    overrides = {
        "workers": workers,
        "agent.kind": agent,
        "devices": devices or None,
        "run": run_name,
        "problems": problems or None,
    }
    config = load_config(workspace, overrides)
    chosen = choose_cluster(config, cluster) if cluster else choose_devices(config)
    check_run(workspace, config, chosen, lambda line: echo(line, err=True))
    kind = kind_of(config, chosen.devices, root=workspace.root)
    decided = {"agent.kind": kind} if cluster else {"agent.kind": kind, "devices": chosen.devices}
    config = load_config(workspace, {**overrides, **decided})
    log_to_file(workspace, "start")
    logging.getLogger("harness").info("start: %s", chosen.reason)
    stop, received = stop_on_signals()
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
        interrupted = outcome.interrupted and signal.SIGINT in received[-1:]
        return record(outcome.reason, EXIT_INTERRUPTED if interrupted else 0)


def ask_for_a_limit(config: Config, limits: Limits) -> None:
    """Ask for confirmation, or warn, if paid agents have no limit of the run or its workers.

    Raises:
        ConfigurationError: the user declined to start without a limit.
    """
    paid = config.agent.kind in _PAID or config.planner.kind == "claude"
    of_command_line = (limits.max_evaluations, limits.max_minutes, limits.max_usd)
    if not paid or any(of_command_line) or _limits(config.agent.overall) or _limits(config.agent.per_worker):
        return
    agents = f"agents of kind {config.agent.kind}" if config.agent.kind in _PAID else "a planner of kind claude"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        echo(f"harness: warning: {agents} run without a limit on what they spend. Set one: {_FIX}", err=True)
        return
    if not click.confirm(f"No limit is set on what {agents} spend. Start without one?", err=True):
        raise ConfigurationError("not started: no limit is set", where="--max-usd", remedy=_FIX)


def _limits(budget: Budget) -> bool:
    return any(value is not None for value in budget.model_dump().values())


@contextmanager
def _display(limits: Limits, *, as_json: bool) -> Iterator[Callable[[Snapshot], None]]:
    """Yield a function that displays a snapshot: live on a terminal, else a line per change; nothing with --json."""
    if as_json:
        yield lambda _: None
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(refresh_per_second=4, transient=True) as live:
            yield lambda snapshot: live.update(_panel(snapshot, limits))
    else:
        printed: dict[str, str] = {}

        def show(snapshot: Snapshot) -> None:
            for subject, line in _lines(snapshot).items():
                if printed.get(subject) != line:
                    printed[subject] = line
                    echo(f"[{snapshot.elapsed_s:5.0f} s] {line}")

        yield show


def _doing(snapshot: Snapshot) -> str:
    daemon = snapshot.daemon or DaemonStatus()
    if daemon.current is None:
        is_idle = any(judge.state == "idle" for judge in daemon.judges)
        return "the judge is idle" if is_idle else "the judge is starting"
    of_worker = f" of {daemon.current.worker}" if daemon.current.worker else ""
    return f"judging {daemon.current.problem} ({daemon.current.kind}{of_worker})"


def _stage(snapshot: Snapshot) -> str:
    current = (snapshot.daemon or DaemonStatus()).current
    if current is None or current.stage is None:
        return ""
    return f": {current.stage}" + (f" {current.done}/{current.of}" if current.of else "")


def _lines(snapshot: Snapshot) -> dict[str, str]:
    """Return subject -> line; a line is printed again when it changes."""
    lines = {"judge": _doing(snapshot)}
    for name, status in sorted(snapshot.workers.items()):
        if status is not None and status.problem:
            lines[f"{name} at"] = f"{name} on {status.problem}"
        if status is not None and status.last_message:
            lines[name] = f"{name}: {status.last_message}"
    for problem, speedup in _confirmed(snapshot).items():
        lines[f"{problem} champion"] = f"champion: {problem} {speedup}"
    lines |= {message: message for message in snapshot.messages}
    return {subject: printable(line) for subject, line in lines.items()}


def _confirmed(snapshot: Snapshot) -> dict[str, str]:
    return snapshot.planner.confirmed if snapshot.planner is not None else {}


def _left(elapsed_s: float, done: int, limits: Limits) -> str:
    """Return the remaining time and evaluations as text; empty without limits."""
    parts = []
    if limits.max_minutes is not None:
        seconds = max(0, round(limits.max_minutes * 60 - elapsed_s))
        parts.append(f"{seconds // 60}:{seconds % 60:02d} left")
    if limits.max_evaluations is not None:
        parts.append(f"{count_of(max(0, limits.max_evaluations - done), 'evaluation')} left")
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
    daemon = snapshot.daemon or DaemonStatus()
    done = count_of(daemon.evaluations_done, "evaluation")
    head = f"{snapshot.elapsed_s:.0f} s   {done}, {daemon.queued} queued   "
    return Group(
        Text(head + _left(snapshot.elapsed_s, daemon.evaluations_done, limits)),
        Text(printable(_doing(snapshot) + _stage(snapshot))),
        table,
        *(Text(f"champion: {problem} {speedup}", style="green") for problem, speedup in _confirmed(snapshot).items()),
        *(Text(printable(message), style="yellow") for message in snapshot.messages[-3:]),
    )


def _finish(workspace: Workspace, config: Config, target: str, outcome: Outcome, *, as_json: bool) -> None:
    """Print the final standings, the problems without a gain, pending submissions, and the next command."""
    from harness.cli.preflight.requirements import run_problems

    with Repo(workspace) as repo, Index(workspace, branch=config.coordination_branch) as index:
        index.refresh(repo)
        table = standings(index, run_problems(workspace, config), target, config.run)
        sentences = repo.checkout_state(config.coordination_branch)
        pending = _pending_candidates(repo, index, config, target)
    if as_json:
        keys = ("problem", "worker", "commit", "tree")
        document = {
            "ended": outcome.reason,
            "failure": str(outcome.failure) if outcome.failure is not None else None,
            "failed_sessions": list(outcome.failed_sessions),
            "target": target,
            "problems": [for_scripts(standing) for standing in table],
            "pending": [{key: getattr(candidate, key) for key in keys} for candidate in pending],
            "checkout": sentences,
        }
        echo_document(document)
        return
    echo(f"ended: {outcome.reason}")
    notes = [totals(table), *outdated_note(table), *weakness_notes(table), *_unbeaten(table)]
    notes += [_pending_line(pending)] if pending else []
    notes += [printable(line) for line in outcome.failed_sessions]
    echo_lines([*standing_lines(table, screen_width()), *notes, *sentences, _next_line(table)])


def _unbeaten(table: tuple[Standing, ...]) -> list[str]:
    """Return a line for each problem without a confirmed speed-up, with the reason from the ledger."""
    lines = []
    for standing in table:
        if standing.champion is not None or (standing.best is None and standing.outdated):
            continue
        if standing.evaluations == 0:
            reason = "not evaluated yet"
        elif standing.best is None:
            reason = "no candidate passed"
        elif (standing.best.speedup_ci95_low or 0.0) > 1:
            reason = f"{standing.best.speedup:.3f}x, its confirmation is missing or failed"
        else:
            reason = "no candidate is faster than the baseline beyond the noise"
        lines.append(f"not beaten: {standing.problem}: {reason}")
    return lines


def _pending_candidates(repo: Repo, index: Index, config: Config, target: str) -> list[CommittedCandidate]:
    """Return the run's submissions without an evaluation in the ledger, oldest first.

    The daemon finds them on their branches and judges them when `harness start` runs again.
    """
    base = repo.tip(config.coordination_branch)
    judged = {(row.problem, row.tree) for row in index.rows(target=target, kind="evaluation")}
    candidates = [
        candidate
        for branch, tip in repo.branches(run_branches(config.run)).items()
        for candidate in committed_candidates(repo, branch, tip, base, target)
        if (candidate.problem, candidate.tree) not in judged
    ]
    return sorted(candidates, key=lambda candidate: candidate.at)


def _pending_line(pending: Sequence[CommittedCandidate]) -> str:
    """Return the line that names submissions without a verdict."""
    names = [f"{candidate.problem} by {candidate.worker} ({candidate.commit[:12]})" for candidate in pending]
    plural = "submission is" if len(pending) == 1 else "submissions are"
    shown = first_names(names, _NAMED)
    return f"pending: {len(pending)} {plural} not judged yet: {shown}; `harness start` judges them"


def _next_line(table: Sequence[Standing]) -> str:
    """Return the line that names the next commands for a person after a run with these standings."""
    champions = sum(standing.champion is not None for standing in table)
    if champions:
        noun = "the champion" if champions == 1 else f"the {champions} champions"
        return f"next: `harness review` shows {noun}; `harness report` writes a page about the run"
    if any(standing.evaluations for standing in table):
        return "next: `harness log` shows every verdict; `harness report` writes a page; `harness start` continues"
    return "next: `harness start` continues; `harness doctor` checks its requirements"
