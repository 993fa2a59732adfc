"""Profiles that workers ask the daemon for: an order and its answer, as files in .harness.

Derived data: a lost order means that a worker waits until its deadline, and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.model.counters import CounterReport
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import FileWatch
from harness.workspace.files import atomic_write

_LARGEST = 1 << 20
_LOOK_EVERY_S = 0.5


class ProfileOrder(BaseModel):
    """A committed candidate whose counters are wanted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    problem: str
    target: str
    commit: str
    tree: str
    """Git tree id of the solution directory."""
    workload: str | None = None
    """Its uuid, or the beginning of it; null for the one with the most data."""


def new_order_id() -> str:
    """Return an id that no other order has."""
    return uuid.uuid4().hex


def waiting_orders(workspace: Workspace) -> list[ProfileOrder]:
    """Return the orders that have no answer yet, the oldest first; other files are ignored."""
    orders = []
    for file in sorted(_directory(workspace).glob("*.order"), key=_written_at):
        with contextlib.suppress(OSError, ValidationError):
            if file.stat().st_size <= _LARGEST:
                orders.append(ProfileOrder.model_validate_json(file.read_bytes()))
    return orders


def answer_order(workspace: Workspace, order: ProfileOrder, report: CounterReport) -> None:
    """Leave the answer of an order where its worker waits, and remove the order."""
    atomic_write(_directory(workspace) / f"{order.id}.report", report.model_dump_json())
    (_directory(workspace) / f"{order.id}.order").unlink(missing_ok=True)


def order_profile(
    workspace: Workspace, order: ProfileOrder, *, stop: threading.Event, deadline_s: float
) -> CounterReport | None:
    """Place an order and wait for its answer; None when told to stop before.

    Raises:
        TimeoutError: there is none within `deadline_s`; the order is withdrawn.
    """
    directory = _directory(workspace)
    ordered, answered = directory / f"{order.id}.order", directory / f"{order.id}.report"
    until = time.monotonic() + deadline_s
    with FileWatch(directory) as changes:
        atomic_write(ordered, order.model_dump_json())
        try:
            while not stop.is_set():
                with contextlib.suppress(FileNotFoundError):
                    return CounterReport.model_validate_json(answered.read_bytes())
                if time.monotonic() > until:
                    raise TimeoutError(f"the judge had no time for a profile within {deadline_s:.0f} s")
                changes.wait(_LOOK_EVERY_S, stop=stop)
        finally:
            ordered.unlink(missing_ok=True)
            answered.unlink(missing_ok=True)
    return None


def _directory(workspace: Workspace) -> Path:
    directory = workspace.derived / "profiles"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # withdrawn meanwhile
        return 0.0
