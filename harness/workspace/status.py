"""What runs right now, one JSON file a part in `.harness/live/`: for display, and gone tomorrow."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write


def write_live(workspace: Workspace, part: str, state: Mapping[str, object]) -> None:
    """Replace `live/<part>.json`; the process id is added."""
    atomic_write(workspace.live / f"{part}.json", json.dumps({"pid": os.getpid(), **state}, default=str))


def read_live(workspace: Workspace, part: str) -> dict[str, object]:
    """What a part said last; {} where it said nothing that can be read."""
    with contextlib.suppress(OSError, FormatError):
        state = load_json_file(workspace.live / f"{part}.json")
        return state if isinstance(state, dict) else {}
    return {}


def running_parts(workspace: Workspace) -> dict[str, dict[str, object]]:
    """What each part says whose process is alive, by its name."""
    found = {file.stem: read_live(workspace, file.stem) for file in workspace.live.glob("*.json")}
    return {name: state for name, state in sorted(found.items()) if _alive(state.get("pid"))}


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's process, but a process
        return True
    return True


def clear_live(workspace: Workspace) -> None:
    """Forget what the parts of an earlier invocation said."""
    for file in workspace.live.glob("*.json"):
        file.unlink(missing_ok=True)
