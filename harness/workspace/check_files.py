"""Files of checks that workers order from the daemon, below `.harness/checks/`: one directory for each order.

The worker writes `solution/` and then `order.json`; the daemon writes `reply.json`; the worker removes the directory.
These files are derived data: after the loss of an order a worker waits until its deadline.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from pathlib import Path

from pydantic import ValidationError

from harness.model.judging import CheckOrder, CheckReply, ShownCode
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write
from harness.workspace.order_files import wait_for_reply

_ORDER, _REPLY, _SOLUTION = "order.json", "reply.json", "solution"
_LEFT_S = 3600.0
"""A directory of this age belongs to no waiting worker and is removed."""


def ask_for_check(
    workspace: Workspace,
    solution: Path,
    *,
    worker: str,
    problem: str,
    target: str,
    show: ShownCode = "",
    function: str = "",
    stop: threading.Event,
    within_s: float,
) -> CheckReply | None:
    """Order a check of a solution directory and wait for the reply.

    Args:
        workspace: the workspace of the daemon.
        solution: the solution directory; it is copied.
        worker: the worker's id.
        problem: the problem's key, `suite/name`.
        target: the target's name.
        show: the generated code to include in the reply; "" for none.
        function: part of the name of the function whose code is shown; "" for the entry.
        stop: ends the wait.
        within_s: deadline from the call, in seconds.

    Returns:
        The reply; None if `stop` was set first.

    Raises:
        TimeoutError: no reply within `within_s`: no daemon runs, or no judge is ready.
    """
    order = CheckOrder(id=uuid.uuid4().hex, worker=worker, problem=problem, target=target, show=show, function=function)
    shutil.copytree(solution, _directory(workspace) / order.id / _SOLUTION)
    return _reply_to(workspace, order, stop=stop, within_s=within_s)


def ask_for_baseline(
    workspace: Workspace, *, worker: str, problem: str, target: str, stop: threading.Event, within_s: float
) -> CheckReply | None:
    """Order a measurement of a problem's baselines and wait until it is complete.

    Args:
        workspace: the workspace of the daemon.
        worker: the worker's id.
        problem: the problem's key, `suite/name`.
        target: the target's name.
        stop: ends the wait.
        within_s: deadline from the call, in seconds.

    Returns:
        The reply; None if `stop` was set first.

    Raises:
        TimeoutError: not complete within `within_s`: no judge is ready or free.
    """
    order = CheckOrder(id=uuid.uuid4().hex, worker=worker, problem=problem, target=target, kind="baseline")
    (_directory(workspace) / order.id).mkdir()
    return _reply_to(workspace, order, stop=stop, within_s=within_s)


def _reply_to(workspace: Workspace, order: CheckOrder, *, stop: threading.Event, within_s: float) -> CheckReply | None:
    directory = _directory(workspace) / order.id
    missing = f"no {order.kind} within {within_s:.0f} s: no judge of {order.target} is ready"
    try:
        return wait_for_reply(
            directory / _ORDER, order, directory / _REPLY, CheckReply, stop=stop, within_s=within_s, missing=missing
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def waiting_orders(workspace: Workspace) -> list[CheckOrder]:
    """Return the orders without a reply, oldest first. Removes directories of workers that no longer wait."""
    aged_orders: list[tuple[float, CheckOrder]] = []
    for directory in _directory(workspace).iterdir():
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
    return _directory(workspace) / order.id / _SOLUTION


def reply_to_check(workspace: Workspace, order_id: str, reply: CheckReply) -> None:
    """Write the reply of an order; do nothing if its worker no longer waits.

    Args:
        workspace: the workspace of the daemon.
        order_id: the order's id.
        reply: the reply.
    """
    directory = _directory(workspace) / order_id
    if directory.is_dir():
        with contextlib.suppress(FileNotFoundError):
            atomic_write(directory / _REPLY, reply.model_dump_json())


def _directory(workspace: Workspace) -> Path:
    directory = workspace.derived / "checks"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
