"""Checks and profiles that workers order from the daemon: orders and replies as files in .harness.

A check has a directory below `.harness/checks/`. The worker writes `solution/` and then `order.json`; the daemon writes
`reply.json`; the worker removes the directory. A profile has two files in `.harness/profiles/`. All of them are derived
data: after the loss of an order a worker waits until its deadline, without other consequences.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from harness.model.base_models import StrictModel
from harness.model.counters import CounterReport
from harness.model.judging import CheckOrder, CheckReply
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import FileWatch
from harness.workspace.files import atomic_write

_ORDER, _REPLY, _SOLUTION = "order.json", "reply.json", "solution"
_LEFT_S = 3600.0
"""A directory of this age belongs to no waiting worker and is removed."""
_LARGEST = 1 << 20
_LOOK_EVERY_S = 0.5
"""A watch can miss events: this is the longest time between two attempts to read the reply."""

Reply = TypeVar("Reply", bound=BaseModel)


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


def order_check(
    workspace: Workspace, order: CheckOrder, solution: Path | None = None, *, stop: threading.Event, within_s: float
) -> CheckReply | None:
    """Order a check of a solution, or a measurement of a problem's baselines, and wait until it is complete.

    Args:
        workspace: the workspace of the daemon.
        order: the order.
        solution: the solution directory, which is copied; None for an order of kind `baseline`.
        stop: ends the wait.
        within_s: deadline from the call, in seconds.

    Returns:
        The reply; None if `stop` was set first.

    Raises:
        TimeoutError: no reply within `within_s`: no daemon runs, or no judge is ready or free.
    """
    directory = _checks(workspace) / order.id
    if solution is None:
        directory.mkdir()
    else:
        shutil.copytree(solution, directory / _SOLUTION)
    missing = f"no {order.kind} within {within_s:.0f} s: no judge of {order.target} is ready"
    try:
        return _reply_to(order, directory / _ORDER, directory / _REPLY, CheckReply, stop, within_s, missing)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def waiting_checks(workspace: Workspace) -> list[CheckOrder]:
    """Return the orders of checks without a reply, oldest first. Removes directories of workers that wait no longer."""
    aged_orders: list[tuple[float, CheckOrder]] = []
    for directory in _checks(workspace).iterdir():
        with contextlib.suppress(OSError, ValidationError):
            age_s = time.time() - directory.stat().st_mtime
            if age_s > _LEFT_S:
                shutil.rmtree(directory, ignore_errors=True)
            elif not (directory / _REPLY).exists() and (directory / _ORDER).is_file():
                order = CheckOrder.model_validate_json((directory / _ORDER).read_bytes())
                aged_orders.append((-age_s, order.model_copy(update={"id": directory.name})))
    return [order for _, order in sorted(aged_orders, key=lambda aged: aged[0])]


def ordered_solution(workspace: Workspace, order: CheckOrder) -> Path:
    """Return the directory of the solution that an order refers to.

    Args:
        workspace: the workspace of the daemon.
        order: the order.
    """
    return _checks(workspace) / order.id / _SOLUTION


def reply_to_check(workspace: Workspace, order_id: str, reply: CheckReply) -> None:
    """Write the reply of an order; do nothing if its worker no longer waits.

    Args:
        workspace: the workspace of the daemon.
        order_id: the order's id.
        reply: the reply.
    """
    directory = _checks(workspace) / order_id
    if directory.is_dir():
        with contextlib.suppress(FileNotFoundError):
            atomic_write(directory / _REPLY, reply.model_dump_json())


def order_profile(
    workspace: Workspace, order: ProfileOrder, *, stop: threading.Event, deadline_s: float
) -> CounterReport | None:
    """Place an order of a profile and wait for its answer.

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
    order_file, report_file = _profile_files(workspace, order)
    missing = f"no judge was free for a profile within {deadline_s:.0f} s"
    try:
        return _reply_to(order, order_file, report_file, CounterReport, stop, deadline_s, missing)
    finally:
        order_file.unlink(missing_ok=True)
        report_file.unlink(missing_ok=True)


def waiting_profiles(workspace: Workspace) -> list[ProfileOrder]:
    """Return the orders of profiles that have no answer yet, the oldest first; other files are ignored."""
    orders = []
    for file in sorted(_profiles(workspace).glob("*.order"), key=_written_at):
        with contextlib.suppress(OSError, ValidationError):
            if file.stat().st_size <= _LARGEST:
                orders.append(ProfileOrder.model_validate_json(file.read_bytes()))
    return orders


def answer_profile(workspace: Workspace, order: ProfileOrder, report: CounterReport) -> None:
    """Write the answer of an order for its worker, and remove the order.

    Args:
        workspace: the workspace of the daemon.
        order: the order.
        report: the answer.
    """
    order_file, report_file = _profile_files(workspace, order)
    atomic_write(report_file, report.model_dump_json())
    order_file.unlink(missing_ok=True)


def _reply_to(
    order: BaseModel,
    order_file: Path,
    reply_file: Path,
    model: type[Reply],
    stop: threading.Event,
    within_s: float,
    missing: str,
) -> Reply | None:
    """Write an order and wait for its reply, with `missing` as the error at the deadline."""
    until = time.monotonic() + within_s
    with FileWatch(reply_file.parent) as changes:
        atomic_write(order_file, order.model_dump_json())
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError, ValidationError):
                return model.model_validate_json(reply_file.read_bytes())
            if time.monotonic() > until:
                raise TimeoutError(missing)
            changes.wait(_LOOK_EVERY_S, stop=stop)
    return None


def _checks(workspace: Workspace) -> Path:
    directory = workspace.derived / "checks"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _profiles(workspace: Workspace) -> Path:
    directory = workspace.derived / "profiles"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _profile_files(workspace: Workspace, order: ProfileOrder) -> tuple[Path, Path]:
    """Return the files of an order and of its answer."""
    return _profiles(workspace) / f"{order.id}.order", _profiles(workspace) / f"{order.id}.report"


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # withdrawn after the listing
        return 0.0
