"""Profiles that workers order from the daemon: an order and its answer, as files in .harness.

The files are derived data: after the loss of an order a worker waits until its deadline, without other consequences.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from pathlib import Path

from pydantic import Field, ValidationError

from harness.model.base_models import StrictModel
from harness.model.counters import CounterReport
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write
from harness.workspace.order_files import wait_for_reply

_LARGEST = 1 << 20


class ProfileOrder(StrictModel):
    """An order to read the counters of a committed candidate."""

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    problem: str
    target: str
    commit: str
    tree: str
    """Git tree id of the solution directory."""
    workload: str | None = None
    """The workload's uuid, or its beginning; null for the workload with the most data."""


def waiting_orders(workspace: Workspace) -> list[ProfileOrder]:
    """Return the orders that have no answer yet, the oldest first; other files are ignored."""
    orders = []
    for file in sorted(_directory(workspace).glob("*.order"), key=_written_at):
        with contextlib.suppress(OSError, ValidationError):
            if file.stat().st_size <= _LARGEST:
                orders.append(ProfileOrder.model_validate_json(file.read_bytes()))
    return orders


def answer_order(workspace: Workspace, order: ProfileOrder, report: CounterReport) -> None:
    """Write the answer of an order for its worker, and remove the order.

    Args:
        workspace: the workspace of the daemon.
        order: the order.
        report: the answer.
    """
    atomic_write(_directory(workspace) / f"{order.id}.report", report.model_dump_json())
    (_directory(workspace) / f"{order.id}.order").unlink(missing_ok=True)


def order_profile(
    workspace: Workspace, order: ProfileOrder, *, stop: threading.Event, deadline_s: float
) -> CounterReport | None:
    """Place an order and wait for its answer.

    Args:
        workspace: the workspace of the daemon.
        order: the order.
        stop: ends the wait.
        deadline_s: time limit in seconds.

    Returns:
        The answer; None if `stop` was set first.

    Raises:
        TimeoutError: no answer within `deadline_s`; the order is withdrawn.
    """
    directory = _directory(workspace)
    order_file, report_file = directory / f"{order.id}.order", directory / f"{order.id}.report"
    missing = f"no judge was free for a profile within {deadline_s:.0f} s"
    try:
        return wait_for_reply(
            order_file, order, report_file, CounterReport, stop=stop, within_s=deadline_s, missing=missing
        )
    finally:
        order_file.unlink(missing_ok=True)
        report_file.unlink(missing_ok=True)


def _directory(workspace: Workspace) -> Path:
    directory = workspace.derived / "profiles"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # withdrawn after the listing
        return 0.0
