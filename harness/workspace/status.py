"""Status records of the running processes, the result of the last `harness start`, and the lock of a run.

Each process has one file in `.harness/status/`, which only this module opens. `harness attach` reads the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from harness.errors import EXIT_INTERNAL_ERROR, ConfigurationError, HarnessError
from harness.model.base_models import StrictModel
from harness.model.process_status import DaemonStatus, PlannerStatus, ProcessStatus, StartStatus, WorkerStatus
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, file_lock, read_record
from harness.workspace.processes import start_ticks

Status = TypeVar("Status", bound=ProcessStatus)
_MODELS: dict[str, type[ProcessStatus]] = {"start": StartStatus, "daemon": DaemonStatus, "planner": PlannerStatus}
_NAMES = {model: name for name, model in _MODELS.items()}
_WORKER = "worker-"


def write_status(workspace: Workspace, status: ProcessStatus) -> None:
    """Replace the record of this process; its pid and start time are added.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    identity = {"pid": os.getpid(), "process_start_ticks": start_ticks(os.getpid()) or 0}
    worker = status.worker if isinstance(status, WorkerStatus) else ""
    atomic_write(_file(workspace, type(status), worker), status.model_copy(update=identity).model_dump_json())


def read_status(workspace: Workspace, model: type[Status], worker: str = "") -> Status | None:
    """Return the last record of a process; None if it is missing, unreadable or of another version.

    The process that wrote a record may have ended: see `is_alive`.

    Args:
        model: the kind of the record, which names the process.
        worker: the worker's id, for the record of a worker.
    """
    return read_record(_file(workspace, model, worker), model)


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
    """Return whether a path is the status file of a worker."""
    return file.parent == workspace.status and file.name.startswith(_WORKER) and file.suffix == ".json"


def clear_statuses(workspace: Workspace) -> None:
    """Delete the records of an earlier invocation."""
    for file in workspace.status.glob("*.json"):
        file.unlink(missing_ok=True)


def _file(workspace: Workspace, model: type[ProcessStatus], worker: str) -> Path:
    return workspace.status / f"{_NAMES.get(model, f'{_WORKER}{worker}')}.json"


@contextmanager
def no_run(workspace: Workspace, owner: str) -> Iterator[None]:
    """Hold the lock of `harness start`, so that no run starts during the block.

    Args:
        owner: the command that holds the lock, for the error message in other processes.

    Raises:
        ConfigurationError: a run is in progress; the message names its process.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(workspace.start_lock, owner=owner))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"a run is in progress in this workspace: {error.message}",
                where=str(workspace.root),
                remedy="`harness stop` ends it; `harness status` shows it",
            ) from error
        yield


class RunResult(StrictModel):
    """The end of one invocation of `harness start`."""

    format: Literal[1] = 1
    pid: int
    process_start_ticks: int
    """With the pid it identifies one process."""
    ended: str
    """Reason of the end, or the error that ended the run."""
    exit_code: int


@contextmanager
def recorded_result(workspace: Workspace) -> Iterator[Callable[[str, int], int]]:
    """Record the end of this process; an exception that leaves the block is recorded with its exit code.

    Yields:
        A function that records the reason of the end and the exit code, and returns the exit code.
    """

    def record(ended: str, exit_code: int) -> int:
        ticks = start_ticks(os.getpid()) or 0
        result = RunResult(pid=os.getpid(), process_start_ticks=ticks, ended=ended, exit_code=exit_code)
        with suppress(HarnessError):  # a full disk must not change the exit code
            atomic_write(_result_file(workspace), result.model_dump_json())
        return exit_code

    try:
        yield record
    except HarnessError as error:
        record(error.message, error.exit_code)
        raise
    except Exception as error:
        record(f"internal error: {type(error).__name__}", EXIT_INTERNAL_ERROR)
        raise


def read_run_result(workspace: Workspace) -> RunResult | None:
    """Return the result of the last invocation; None if no record of this version exists."""
    return read_record(_result_file(workspace), RunResult)


def result_of(workspace: Workspace, start: StartStatus) -> RunResult | None:
    """Return the result of one invocation of `harness start` that has ended; None if it was killed."""
    result = read_run_result(workspace)
    identity = start.pid, start.process_start_ticks
    return result if result is not None and (result.pid, result.process_start_ticks) == identity else None


def _result_file(workspace: Workspace) -> Path:
    return workspace.derived / "last-run.json"
