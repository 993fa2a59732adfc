"""Run of a repository's daemon: its lock, its ledger and index, and the rest of its limit of evaluations."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

from harness.daemon.daemon import Daemon
from harness.daemon.metrics import DaemonMetrics, MetricsServer
from harness.errors import HarnessError
from harness.failpoints import failpoint
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.base_models import StrictModel
from harness.model.config import Config
from harness.model.devices import expand_devices
from harness.model.verdict import EntryKind
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, file_lock, read_record
from harness.workspace.head_record import only_head
from harness.workspace.judge_source import OpenJudges, local_judges
from harness.workspace.processes import PARENT_VARIABLE, start_ticks

logger = logging.getLogger(__name__)


def run_daemon(
    workspace: Workspace,
    config: Config,
    *,
    devices: Sequence[str] = (),
    max_evaluations: int | None = None,
    once: bool = False,
    invocation: str | None = None,
    metrics_port: int | None = None,
    open_judges: OpenJudges | None = None,
    stop: threading.Event,
) -> None:
    """Judge the candidates on the run's branches until `stop` is set.

    Args:
        workspace: the workspace; one daemon serves it at a time.
        devices: one judge each; the default is the configuration's list.
        max_evaluations: entries of kind evaluation that this invocation may write; due confirmations are extra.
        metrics_port: the port of metrics for Prometheus, on the loopback; None serves none.
        invocation: identity of the invocation; a restarted daemon of the same one continues its count of evaluations.
        open_judges: makes the source of judges that replaces `devices`: a cluster.
        stop: ends the daemon: the judges are ended and the ledger is committed.

    Raises:
        ConfigurationError: another daemon serves this repository, on this host or another (the message names its
            process), or no judge starts.
        LedgerError: answers could not be entered until the end.
    """
    with ExitStack() as stack:
        stack.enter_context(file_lock(workspace.state / "daemon.lock", owner="harness daemon"))
        failpoint("daemon.after_lock")

        def give_way() -> None:
            logger.error("another head has taken over this workspace: this one ends")
            stop.set()

        record = workspace.state / "daemon.head.json"
        stack.enter_context(only_head(record, "harness daemon", taken_over=give_way))
        repo = stack.enter_context(Repo(workspace))
        branch = config.coordination_branch
        index = stack.enter_context(Index(workspace, branch=branch))
        # A repository object of its own: commits run in a thread and read whole ledger files.
        committing = stack.enter_context(Repo(workspace))
        ledger = Ledger(workspace, committing, writer="daemon", branch=branch, before_move=index.expect)
        stack.callback(ledger.close)
        done = 0
        try:
            if invocation is not None:
                index.refresh(repo)
                count = index.count(run=config.run, kind=EntryKind.EVALUATION)
                done = count - evaluations_before(workspace, invocation, count)
        except HarnessError as error:
            if max_evaluations is not None:
                raise  # the limit would be exceeded
            logger.warning("earlier evaluations of this invocation are not counted: %s", error)
        metrics = DaemonMetrics()
        if metrics_port is not None:
            stack.enter_context(MetricsServer(metrics, metrics_port))
        names = expand_devices(devices or config.devices)
        daemon = Daemon(
            workspace,
            config,
            repo,
            ledger,
            index,
            open_judges=open_judges or (lambda post: local_judges(workspace, config, names, post)),
            max_evaluations=max_evaluations,
            evaluations_done=done,
            metrics=metrics,
        )
        stack.callback(daemon.close)
        daemon.run(stop, once=once)


def current_invocation() -> str | None:
    """Return the pid and start time of the supervisor that started this process; None without a supervisor.

    It must be called before `end_with_parent`, which removes the supervisor's pid from the environment.
    """
    supervisor = os.environ.get(PARENT_VARIABLE)
    if supervisor is None:
        return None
    began = start_ticks(int(supervisor))
    return f"{supervisor}-{began}" if began is not None else None


class _InvocationRecord(StrictModel):
    version: Literal[1] = 1
    id: str
    evaluations_before: int


def evaluations_before(workspace: Workspace, invocation: str, count: int) -> int:
    """Return the number of evaluations in the ledger when the invocation began.

    Args:
        count: the present number; the invocation's first daemon stores and returns it.

    Raises:
        ConfigurationError: the number cannot be written.
    """
    file = workspace.state / "invocation.json"
    stored = read_record(file, _InvocationRecord)
    if stored is not None and stored.id == invocation:
        return stored.evaluations_before
    atomic_write(file, _InvocationRecord(id=invocation, evaluations_before=count).model_dump_json())
    return count
