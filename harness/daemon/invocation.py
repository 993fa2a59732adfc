"""Which `harness start` a daemon works for, so that its limits are counted over the daemon's restarts too."""

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
    """Names the supervisor that started this process: its number and when it began; None when there is none.

    To be asked before `end_with_parent`, which takes the supervisor's number out of the environment.
    """
    supervisor = os.environ.get(PARENT_VARIABLE)
    if supervisor is None:
        return None
    began = start_ticks(int(supervisor))
    return f"{supervisor}-{began}" if began is not None else None


def evaluations_before(workspace: Workspace, invocation: str, count: int) -> int:
    """How many evaluations the ledger held when the invocation began; `count`, and remembered, at its first daemon.

    Raises:
        ConfigurationError: it cannot be written down.
    """
    file = workspace.state / "invocation.json"
    with suppress(OSError, FormatError, ValueError, KeyError, TypeError):
        known = load_json_file(file)
        if known["id"] == invocation:
            return int(known["evaluations_before"])
    atomic_write(file, json.dumps({"version": 1, "id": invocation, "evaluations_before": count}))
    return count
