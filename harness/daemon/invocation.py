"""Identity of the `harness start` that a daemon works for, so that its limits include the daemon's restarts."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write
from harness.workspace.parent_process import PARENT_VARIABLE
from harness.workspace.process_identity import start_ticks


def current_invocation() -> str | None:
    """Return the pid and start time of the supervisor that started this process; None without a supervisor.

    It must be called before `end_with_parent`, which removes the supervisor's pid from the environment.
    """
    supervisor = os.environ.get(PARENT_VARIABLE)
    if supervisor is None:
        return None
    began = start_ticks(int(supervisor))
    return f"{supervisor}-{began}" if began is not None else None


def evaluations_before(workspace: Workspace, invocation: str, count: int) -> int:
    """Return the number of evaluations in the ledger when the invocation began.

    Args:
        workspace: the workspace of the ledger.
        invocation: identity of the invocation.
        count: the present number; the invocation's first daemon stores and returns it.

    Raises:
        ConfigurationError: the number cannot be written.
    """
    file = workspace.state / "invocation.json"
    with suppress(OSError, FormatError, ValueError, KeyError, TypeError):
        stored = load_json_file(file)
        if stored["id"] == invocation:
            return int(stored["evaluations_before"])
    atomic_write(file, json.dumps({"version": 1, "id": invocation, "evaluations_before": count}))
    return count
