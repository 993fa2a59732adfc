"""Profiles that workers ask the daemon for: an order and its answer, as files in .harness.

Derived data: a lost order means that a worker waits until its deadline, and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.model.counters import CounterReport
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write
from harness.workspace.order_files import wait_for_reply

_LARGEST = 1 << 20


class ProfileOrder(BaseModel):
    """An order to read the counters of a committed candidate."""

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
        TimeoutError: no answer within `deadline_s`; the order is withdrawn.
    """
    directory = _directory(workspace)
    ordered, answered = directory / f"{order.id}.order", directory / f"{order.id}.report"
    missing = f"the judge had no time for a profile within {deadline_s:.0f} s"
    try:
        return wait_for_reply(ordered, order, answered, CounterReport, stop=stop, within_s=deadline_s, missing=missing)
    finally:
        ordered.unlink(missing_ok=True)
        answered.unlink(missing_ok=True)


def _directory(workspace: Workspace) -> Path:
    directory = workspace.derived / "profiles"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # withdrawn meanwhile
        return 0.0
