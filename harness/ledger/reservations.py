"""Reservations: upper bounds on the cost of the requests in flight, in one file that all workers of a workspace share.

A request is forwarded only after its reservation was entered under the file's lock. The reservations of a killed
process remain; the next process that takes the lock removes them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from harness.model.base_models import StrictModel
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, file_lock, read_record
from harness.workspace.processes import start_ticks

_LOCK_S = 30.0


class Reservation(StrictModel):
    """Upper bound on the cost of one request in flight, and the process that waits for its answer."""

    id: str
    run: str
    worker: str
    account: str
    """The id of the session's account."""
    usd: float
    pid: int
    process_start_ticks: int


class _Reservations(StrictModel):
    format: Literal[1] = 1
    reservations: tuple[Reservation, ...] = ()


def new_reservation(*, run: str, worker: str, account: str, usd: float) -> Reservation:
    """Return a reservation of this process. It takes effect after its entry by `changing_reservations`.

    Args:
        account: the id of the session's account.
        usd: upper bound on the cost of the request.
    """
    pid = os.getpid()
    return Reservation(
        id=uuid.uuid4().hex,
        run=run,
        worker=worker,
        account=account,
        usd=usd,
        pid=pid,
        process_start_ticks=start_ticks(pid) or 0,
    )


@contextmanager
def changing_reservations(workspace: Workspace) -> Iterator[list[Reservation]]:
    """Hold the lock of the reservations, and write the list at the end of the block.

    Yields:
        The reservations of running processes.

    Raises:
        ConfigurationError: the lock was not free for 30 s, or the file cannot be written.
    """
    file = workspace.state / "reservations.json"
    with file_lock(workspace.state / "locks" / "reservations", wait_s=_LOCK_S, owner="a gateway"):
        before = (read_record(file, _Reservations) or _Reservations()).reservations
        reservations = [
            reservation for reservation in before if start_ticks(reservation.pid) == reservation.process_start_ticks
        ]
        yield reservations
        after = tuple(reservations)
        if after != before:
            atomic_write(file, _Reservations(reservations=after).model_dump_json())


def release(workspace: Workspace, predicate: Callable[[Reservation], bool]) -> None:
    """Remove the reservations for which `predicate` is true; the accounts have their costs by then."""
    with changing_reservations(workspace) as reservations:
        reservations[:] = [reservation for reservation in reservations if not predicate(reservation)]
