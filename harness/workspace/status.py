"""Status records of the running processes: one JSON file each in `.harness/status/`, opened by this module only."""

from __future__ import annotations

import os
from pathlib import Path

from harness.model.process_status import DaemonStatus, PlannerStatus, ProcessStatus, StartStatus, WorkerStatus
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, read_record
from harness.workspace.processes import start_ticks

_START, _DAEMON, _PLANNER, _WORKER = "start", "daemon", "planner", "worker-"
_MODELS: dict[str, type[ProcessStatus]] = {_START: StartStatus, _DAEMON: DaemonStatus, _PLANNER: PlannerStatus}


def write_status(workspace: Workspace, status: ProcessStatus) -> None:
    """Replace the record of this process; its pid and start time are added.

    Args:
        workspace: the workspace of the process.
        status: the record.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    identity = {"pid": os.getpid(), "process_start_ticks": start_ticks(os.getpid()) or 0}
    atomic_write(_file(workspace, _name_of(status)), status.model_copy(update=identity).model_dump_json())


def read_start_status(workspace: Workspace) -> StartStatus | None:
    """Return the last record of `harness start`; None if it is missing, unreadable or of another version.

    The process that wrote a record may have ended: see `is_alive`. The same applies to the other readers.
    """
    return read_record(_file(workspace, _START), StartStatus)


def read_daemon_status(workspace: Workspace) -> DaemonStatus | None:
    """Return the last record of the daemon, or None."""
    return read_record(_file(workspace, _DAEMON), DaemonStatus)


def read_planner_status(workspace: Workspace) -> PlannerStatus | None:
    """Return the last record of the planner, or None."""
    return read_record(_file(workspace, _PLANNER), PlannerStatus)


def read_worker_status(workspace: Workspace, worker: str) -> WorkerStatus | None:
    """Return the last record of one worker, or None.

    Args:
        workspace: the workspace of the worker.
        worker: the worker's id.
    """
    return read_record(_file(workspace, f"{_WORKER}{worker}"), WorkerStatus)


def recorded_processes(workspace: Workspace) -> dict[str, ProcessStatus]:
    """Return the records of the last invocation, also of processes that have ended, by process name."""
    records = {
        file.stem: read_record(file, _MODELS.get(file.stem, WorkerStatus))
        for file in sorted(workspace.status.glob("*.json"))
    }
    return {name: status for name, status in records.items() if status is not None}


def running_processes(workspace: Workspace) -> dict[str, ProcessStatus]:
    """Return the records of the processes that are alive, by process name: start, daemon, planner, worker-w01 ..."""
    return {name: status for name, status in recorded_processes(workspace).items() if is_alive(status)}


def is_alive(status: ProcessStatus) -> bool:
    """Return whether the process that wrote a record runs; another process with the same pid does not count."""
    return status.pid > 0 and start_ticks(status.pid) == status.process_start_ticks


def is_worker_status(workspace: Workspace, file: Path) -> bool:
    """Return whether a path is the status file of a worker.

    Args:
        workspace: the workspace of the workers.
        file: the path.
    """
    return file.parent == workspace.status and file.name.startswith(_WORKER) and file.suffix == ".json"


def clear_statuses(workspace: Workspace) -> None:
    """Delete the records of an earlier invocation."""
    for file in workspace.status.glob("*.json"):
        file.unlink(missing_ok=True)


def _file(workspace: Workspace, name: str) -> Path:
    return workspace.status / f"{name}.json"


def _name_of(status: ProcessStatus) -> str:
    if isinstance(status, WorkerStatus):
        return f"{_WORKER}{status.worker}"
    return next(name for name, model in _MODELS.items() if isinstance(status, model))
