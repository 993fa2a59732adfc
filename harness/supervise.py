"""`harness start`: one daemon, one planner and N workers as child processes, supervised until the run ends.

All state is on disk, so the supervisor has none. It starts the child processes, restarts those that end unexpectedly,
decides from their status records when the run ends, and ends them. A child ends with its supervisor, also if that is
killed.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from harness.agents.governor import SpendTracker
from harness.agents.model_access import api_backoff
from harness.child_process import ChildProcess, output_file
from harness.errors import ConfigurationError
from harness.failpoints import failpoint
from harness.git.repo import Repo
from harness.model.config import Config
from harness.model.entry import stamp
from harness.model.process_status import DaemonStatus, PlannerStatus, ProcessStatus, StartStatus, WorkerStatus
from harness.run_end import WORKER_PREFIX, Limits, Outcome, RunEnd, Snapshot
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock
from harness.workspace.log_files import limit_size
from harness.workspace.status import clear_statuses, is_alive, no_run, read_status, write_status

logger = logging.getLogger(__name__)

TICK_S = 0.25
_ENDS_WITHIN_S = 60.0
"""A child process that has not ended this long after SIGTERM is killed: the daemon commits the ledger meanwhile."""
_KILLED_WITHIN_S = 5.0
_RESTARTS = 5
"""A child process with more crashes in a row, each soon after its start, is not started again."""
_BACK_OFF_S = 0.5

_Status = TypeVar("_Status", bound=ProcessStatus)


def run_start(
    workspace: Workspace,
    config: Config,
    *,
    target: str,
    limits: Limits,
    stop: threading.Event,
    show: Callable[[Snapshot], None],
    metrics_port: int | None = None,
    cluster: str | None = None,
) -> Outcome:
    """Run everything until a limit is reached, no work is left, or `stop` is set.

    Args:
        show: called with each snapshot, every 0.25 s.
        metrics_port: the port of the daemon's metrics; None for none.
        cluster: address of the Ray cluster that runs the judges; None for judges on this host.

    Returns:
        The end of the invocation.

    Raises:
        ConfigurationError: another harness runs in this workspace (the message names its process), or a child process
            cannot work.
    """
    with ExitStack() as stack:
        stack.enter_context(no_run(workspace, "harness start"))
        clear_statuses(workspace)
        failpoint("supervisor.before_start")
        with Repo(workspace) as repo:
            usd_before = SpendTracker(workspace, repo, config).spent().usd
        api_backoff.allow_requests(workspace)
        children = _children(config, target, limits, usd_before, metrics_port, cluster)
        record = StartStatus(
            children=tuple(children),
            run=config.run,
            target=target,
            problems=config.problems,
            started_at=stamp(datetime.now(UTC)),
            usd_before=usd_before,
            **asdict(limits),
        )
        supervisor = _Supervisor(workspace, record, children, limits, stop, show)
        stack.callback(clear_statuses, workspace)
        try:
            return supervisor.run()
        finally:
            supervisor.end()


def worker_names(count: int) -> tuple[str, ...]:
    """Return the names of the workers: w01, w02 ..."""
    return tuple(f"w{number:02d}" for number in range(1, count + 1))


def _children(
    config: Config, target: str, limits: Limits, usd_before: float, metrics_port: int | None, cluster: str | None
) -> dict[str, ChildProcess]:
    """Return the child processes by name."""
    run, names = ["--run", config.run], worker_names(config.workers)
    devices = _options("--cluster", cluster) or _options("--device", *config.devices)
    limit_and_port = _options("--max-evaluations", limits.max_evaluations) + _options("--metrics", metrics_port)
    scope = ["--target", target, *_options("--problem", *config.problems), *_options("--worker", *names)]
    # The limit of the whole run, of which `usd_before` precedes this invocation.
    usd = None if limits.max_usd is None else min(usd_before + limits.max_usd, config.agent.overall.usd or math.inf)
    money = _options("--max-usd", usd)
    of_worker = [*run, "--target", target, *_options("--agent", config.agent.kind), *money]
    arguments = {
        "daemon": ["daemon", *run, *devices, *limit_and_port],
        "planner": ["planner", *run, *scope, *money],
        **{f"{WORKER_PREFIX}{name}": ["worker", name, *of_worker] for name in names},
    }
    return {name: ChildProcess(name, [sys.executable, "-m", "harness", *words]) for name, words in arguments.items()}


def _options(name: str, *values: object) -> list[str]:
    """Return an option of a command for each value that is set."""
    return [part for value in values if value for part in (name, str(value))]


@dataclass
class _Supervisor:
    workspace: Workspace
    record: StartStatus
    children: dict[str, ChildProcess]
    """By name."""
    limits: Limits
    stop: threading.Event
    show: Callable[[Snapshot], None]
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._workers = {
            name.removeprefix(WORKER_PREFIX): child for name, child in self.children.items() if WORKER_PREFIX in name
        }
        self._since = time.monotonic()
        self._end = RunEnd(self.workspace, self.limits, self._workers)

    def run(self) -> Outcome:
        write_status(self.workspace, self.record)
        for child in self.children.values():
            child.start(self.workspace)
            failpoint("supervisor.part_started")
        while True:
            snapshot = self._look()
            self.show(snapshot)
            outcome = self._end.outcome(snapshot, stopped=self.stop.is_set())
            if outcome is not None:
                failpoint("supervisor.before_end")
                return outcome
            self.stop.wait(TICK_S)

    def _look(self) -> Snapshot:
        limit_size(output_file(self.workspace, "start"))
        for child in self.children.values():
            child.limit_output()
            self._revive(child)
        daemon = _written_by(self.children["daemon"], read_status(self.workspace, DaemonStatus))
        planner = _written_by(self.children["planner"], read_status(self.workspace, PlannerStatus))
        workers = {
            name: _written_by(child, read_status(self.workspace, WorkerStatus, name))
            for name, child in self._workers.items()
        }
        of_parts = (*(daemon.messages if daemon else ()), *(planner.messages if planner else ()))
        messages = (*self.messages, *of_parts, *model_messages(self.workspace))
        return Snapshot(daemon, planner, workers, time.monotonic() - self._since, messages)

    def _revive(self, child: ChildProcess) -> None:
        """Restart a child process that has ended unexpectedly.

        Raises:
            ConfigurationError: it ends repeatedly, or its exit code means that it cannot work.
        """
        if child.is_alive or child.process is None or self.stop.is_set():
            return
        now_s = time.monotonic()
        if not child.restart_at:
            child.count_crash()
            cause, output = child.cause_of_end(), child.last_output()
            if child.process.returncode == ConfigurationError.exit_code or child.consecutive_crashes > _RESTARTS:
                raise ConfigurationError(
                    f"the {child.name} cannot work ({cause}): {output}",
                    where=str(output_file(self.workspace, child.name)),
                )
            child.restart_at = now_s + _BACK_OFF_S * 2 ** (child.consecutive_crashes - 1)
            self.messages.append(f"the {child.name} ended ({cause}) and is started again")
            logger.warning("%s; its last output: %s", self.messages[-1], output)
            failpoint("supervisor.part_died")
        if now_s >= child.restart_at:
            child.start(self.workspace)
            failpoint("supervisor.part_restarted")

    def end(self) -> None:
        """End every child process: workers first, so that no work is added; the daemon last: it commits the ledger."""
        for group in ([*self._workers.values()], [self.children["planner"]], [self.children["daemon"]]):
            for child in group:
                child.send_signal(signal.SIGTERM)
                failpoint("supervisor.told_to_end")
            _wait(group)
        failpoint("supervisor.ended")


def _written_by(child: ChildProcess, status: _Status | None) -> _Status | None:
    """Return a record if the present process of a child wrote it, not an ended one."""
    own = status is not None and child.process is not None and status.pid == child.process.pid
    return status if own else None


def model_messages(workspace: Workspace) -> tuple[str, ...]:
    """Return messages about an unavailable model, which are shown long before sessions end or pause because of it."""
    state = api_backoff.read_backoff(workspace)
    if state.stopped:
        return (state.stopped,)
    return (f"{state.reason}: all workers wait and try again",) if state.wait_s() > 0 else ()


def _wait(children: Sequence[ChildProcess]) -> None:
    until = time.monotonic() + _ENDS_WITHIN_S
    for child in children:
        if child.process is None:
            continue
        try:
            child.process.wait(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            logger.warning("the %s has not ended within %.0f s and is killed", child.name, _ENDS_WITHIN_S)
            child.send_signal(signal.SIGKILL)
            child.process.wait(timeout=_KILLED_WITHIN_S)


def stop_running(workspace: Workspace, within_s: float) -> bool:
    """End a running `harness start` cleanly and wait for it.

    Args:
        within_s: time limit in seconds.

    Returns:
        False if no run is in progress in this workspace.

    Raises:
        ConfigurationError: it has not ended within `within_s`.
    """
    status = read_status(workspace, StartStatus)
    if status is None or not is_alive(status) or not _lock_is_held(workspace):
        return False
    with suppress(ProcessLookupError):
        os.kill(status.pid, signal.SIGTERM)
    if _lock_is_held(workspace, within_s):
        raise ConfigurationError(
            f"harness start (process {status.pid}) has not ended within {within_s:.0f} s",
            remedy=f"wait and try again: `harness stop --within 300`; or `kill -9 {status.pid}`: no data is lost",
        )
    return True


def _lock_is_held(workspace: Workspace, wait_s: float = 0.0) -> bool:
    try:
        with file_lock(workspace.start_lock, wait_s=wait_s, owner="harness stop"):
            return False
    except ConfigurationError:
        return True
