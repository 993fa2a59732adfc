"""`harness attach` and `harness start --detach`: runs that are independent of a terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import click

from harness.child_process import output_file
from harness.cli.display.output import echo, echo_document, echo_lines
from harness.errors import AnswerIsNo, ConfigurationError
from harness.model.process_status import DaemonStatus, StartStatus
from harness.workspace.directories import Workspace
from harness.workspace.log_files import GrowingFile, rotate
from harness.workspace.status import is_alive, no_run, read_run_result, read_status, result_of, running_processes

_POLL_S = 0.1
_START_TIMEOUT_S = 900.0
"""Longer than a judge may take to become ready. A run that cannot start ends earlier, with its reason."""


@click.command()
def attach() -> int:
    """Follow the run of this workspace: print its output from now on, until it ends. Ctrl-C does not end the run.

    The exit code is that of the run.
    """
    workspace = Workspace.find()
    status = read_status(workspace, StartStatus)
    if status is None or not is_alive(status):
        last = _last_end(workspace, status)
        raise AnswerIsNo(f"no `harness start` runs in this workspace{last}", remedy="harness start --detach")
    log = _output_of(status)
    output = GrowingFile(log, from_end=True)
    try:
        echo(f"following {log} of process {status.pid}; Ctrl-C does not end the run", err=True)
        while is_alive(status):
            echo_lines(output.new_lines())
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        echo("the run continues: `harness attach` follows it again, `harness stop` ends it", err=True)
        raise
    echo_lines(output.new_lines(at_end=True))
    result = result_of(workspace, status)
    if result is None:
        raise ConfigurationError(
            f"the run (process {status.pid}) ended without a result: it was killed",
            where=str(log),
            remedy="harness start    # continues the run; all results are saved",
        )
    echo(f"the run has ended: {result.ended} (exit code {result.exit_code})", err=True)
    return result.exit_code


def _last_end(workspace: Workspace, status: StartStatus | None) -> str:
    """Return the end of a sentence: how the last run has ended; empty if there was none.

    Args:
        status: the last record of `harness start`, which a run deletes at its end unless it is killed.
    """
    result = read_run_result(workspace) if status is None else result_of(workspace, status)
    if result is not None:
        return f"; the last one ended: {result.ended} (exit code {result.exit_code})"
    return "" if status is None else f"; the last one (process {status.pid}) was killed"


def _output_of(status: StartStatus) -> Path:
    """Return the file to which a run's stdout is redirected.

    Raises:
        AnswerIsNo: stdout is a terminal or a pipe.
    """
    try:
        log = Path(f"/proc/{status.pid}/fd/1").resolve()
    except OSError:
        log = Path()
    if not log.is_file():
        raise AnswerIsNo(
            f"`harness start` (process {status.pid}) was not started with --detach and prints to its own terminal",
            remedy="`harness status --watch` shows its progress",
        )
    return log


def start_detached(workspace: Workspace, *, as_json: bool) -> int:
    """Run the present command without --detach in a new session, and wait until the run has started.

    Args:
        as_json: print pid and log file as JSON.

    Returns:
        0 if all processes run and a judge is ready; otherwise the exit code of the run, whose output is printed.

    Raises:
        ConfigurationError: another run is in progress in the workspace, or the run has not started in time.
    """
    with no_run(workspace, "harness start --detach"):
        pass  # fails if a run is in progress, before that run's log is renamed
    log = output_file(workspace, "start")
    log.parent.mkdir(parents=True, exist_ok=True)
    rotate(log)
    command = [sys.executable, "-m", "harness", *(word for word in sys.argv[1:] if word != "--detach")]
    handler_before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the run inherits it, as with nohup
    try:
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
    finally:
        signal.signal(signal.SIGHUP, handler_before)
    output, until = GrowingFile(log), time.monotonic() + _START_TIMEOUT_S
    try:
        while process.poll() is None and not _is_up(workspace, process.pid):
            echo_lines(output.new_lines(), err=True)
            if time.monotonic() >= until:
                raise ConfigurationError(
                    f"the run (process {process.pid}) has not started within {_START_TIMEOUT_S:.0f} s; it still runs",
                    where=str(log),
                    remedy="`harness status` shows what it waits for, `harness stop` ends it",
                )
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        echo(f"the run (process {process.pid}) continues to start; `harness stop` ends it", err=True)
        raise
    echo_lines(output.new_lines(at_end=True), err=True)
    if process.returncode is not None:
        echo(f"the run has ended (exit code {process.returncode}); its output is in {log}", err=True)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode
    if as_json:
        echo_document({"pid": process.pid, "log": str(log)}, indent=None)
    else:
        echo(f"the run is up: process {process.pid}, log {log}")
        echo("`harness attach` follows it, `harness status --watch` shows it, `harness stop` ends it")
    return 0


def _is_up(workspace: Workspace, pid: int) -> bool:
    """Return True if every process of a run has written its status record and a judge is ready."""
    running = running_processes(workspace)
    start, daemon = running.get("start"), running.get("daemon")
    if not isinstance(start, StartStatus) or start.pid != pid or not isinstance(daemon, DaemonStatus):
        return False
    return any(judge.became_ready for judge in daemon.judges) and all(name in running for name in start.children)
