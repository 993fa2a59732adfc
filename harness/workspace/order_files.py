"""Checks and profiles that workers order from the daemon: orders and replies as files in .harness.

An order has a directory below `.harness/checks/` or `.harness/profiles/`. The worker writes `solution/`, if the order
needs one, and then `order.json`; the daemon writes `reply.json`; the worker removes the directory. All of them are
derived data: after the loss of an order a worker waits until its deadline, without other consequences.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, Field

from harness.model.base_models import StrictModel
from harness.model.counters import CounterReport
from harness.model.judging import CheckOrder, CheckReply
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import FileWatch
from harness.workspace.files import atomic_write, read_record

_ORDER, _REPLY, _SOLUTION = "order.json", "reply.json", "solution"
_LEFT_S = 3600.0
"""A directory of this age belongs to no waiting worker and is removed."""
_LIST_EVERY_S = 5.0
"""Interval at which the orders are listed without a change, so that aged directories are removed."""
_CLOCK_TICK_NS = 50_000_000
_LOOK_EVERY_S = 0.5
"""A watch can miss events: this is the longest time between two attempts to read the reply."""


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


Order = TypeVar("Order", CheckOrder, ProfileOrder)
Reply = TypeVar("Reply", bound=BaseModel)


def order_check(
    workspace: Workspace, order: CheckOrder, solution: Path | None = None, *, stop: threading.Event, within_s: float
) -> CheckReply | None:
    """Order a check of a solution, or a measurement of a problem's baselines, and wait until it is complete.

    Args:
        solution: the solution directory, which is copied; None for an order of kind `baseline`.
        within_s: deadline from the call, in seconds.

    Returns:
        The reply; None if `stop` was set first.

    Raises:
        TimeoutError: no reply within `within_s`: no daemon runs, or no judge is ready or free.
    """
    missing = f"no {order.kind} within {within_s:.0f} s: no judge of {order.target} is ready"
    directory = _directory(workspace, CheckOrder, order.id)
    if solution is not None:
        shutil.copytree(solution, directory / _SOLUTION)
    return _reply_to(order, directory, CheckReply, stop, within_s, missing)


def order_profile(
    workspace: Workspace, order: ProfileOrder, *, stop: threading.Event, deadline_s: float
) -> CounterReport | None:
    """Place an order of a profile and wait for its answer.

    Returns:
        The answer; None if `stop` was set first.

    Raises:
        TimeoutError: no answer within `deadline_s`; the order is withdrawn.
    """
    missing = f"no judge was free for a profile within {deadline_s:.0f} s"
    directory = _directory(workspace, ProfileOrder, order.id)
    return _reply_to(order, directory, CounterReport, stop, deadline_s, missing)


class OrderQueue(Generic[Order]):
    """The daemon's view of the orders of one kind. Not thread-safe.

    Workers touch the directory of all orders after each change, so that it is listed only when its time has changed.
    """

    def __init__(self, workspace: Workspace, model: type[Order]) -> None:
        self._directory = _directory(workspace, model)
        self._model: type[Order] = model
        self._waiting: list[Order] = []
        self._listed: tuple[int, float] | None = None
        """The directory's time of change in ns and the monotonic time in s, both at the last listing."""

    def waiting(self) -> list[Order]:
        """Return the orders without a reply, oldest first. Removes directories of workers that wait no longer.

        Raises:
            OSError: the directory of orders cannot be read.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        changed_ns, now_s = self._directory.stat().st_mtime_ns, time.monotonic()
        if self._listed is None or self._listed[0] != changed_ns or now_s - self._listed[1] > _LIST_EVERY_S:
            self._waiting = _listed(self._directory, self._model)
            # The file system's clock is coarse: a later change within the same tick has the same time.
            is_settled = time.time_ns() - changed_ns > _CLOCK_TICK_NS
            self._listed = (changed_ns, now_s) if is_settled else None
        return list(self._waiting)

    def reply(self, order_id: str, reply: BaseModel) -> None:
        """Write the reply of an order; do nothing if its worker no longer waits.

        Raises:
            ConfigurationError: the reply cannot be written.
        """
        self._listed = None
        directory = self._directory / order_id
        if directory.is_dir():
            atomic_write(directory / _REPLY, reply.model_dump_json())


def _listed(all_orders: Path, model: type[Order]) -> list[Order]:
    aged_orders: list[tuple[float, Order]] = []
    for directory in all_orders.iterdir():
        with contextlib.suppress(OSError):  # its worker has removed it
            age_s = time.time() - directory.stat().st_mtime
            if age_s > _LEFT_S:
                shutil.rmtree(directory, ignore_errors=True)
            elif not (directory / _REPLY).exists() and (order := read_record(directory / _ORDER, model)):
                aged_orders.append((-age_s, order.model_copy(update={"id": directory.name})))
    return [order for _, order in sorted(aged_orders, key=lambda aged: aged[0])]


def _directory(workspace: Workspace, model: type[Order], order_id: str = "") -> Path:
    """Return the directory of an order; without an id, that of all orders of a kind."""
    return workspace.derived / ("checks" if model is CheckOrder else "profiles") / order_id


def ordered_solution(workspace: Workspace, order: CheckOrder) -> Path:
    """Return the directory of the solution that an order refers to."""
    return _directory(workspace, CheckOrder, order.id) / _SOLUTION


def _reply_to(
    order: BaseModel, directory: Path, model: type[Reply], stop: threading.Event, within_s: float, missing: str
) -> Reply | None:
    """Write an order and wait for its reply, with `missing` as the error at the deadline; then remove the order."""
    until = time.monotonic() + within_s
    try:
        with FileWatch(directory) as changes:
            atomic_write(directory / _ORDER, order.model_dump_json())
            os.utime(directory.parent)
            while not stop.is_set():
                reply = read_record(directory / _REPLY, model)
                if reply is not None:
                    return reply
                if time.monotonic() > until:
                    raise TimeoutError(missing)
                changes.wait(_LOOK_EVERY_S, stop=stop)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return None
