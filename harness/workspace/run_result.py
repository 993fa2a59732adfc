"""Result of the last `harness start`: written by that process, read by `harness attach` in another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from harness.errors import EXIT_INTERNAL_ERROR, HarnessError
from harness.model.base_models import StrictModel
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, read_record
from harness.workspace.processes import start_ticks


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
            atomic_write(_file(workspace), result.model_dump_json())
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
    return read_record(_file(workspace), RunResult)


def _file(workspace: Workspace) -> Path:
    return workspace.derived / "last-run.json"
