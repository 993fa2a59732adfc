"""An order and its reply as files: one process writes the order and waits, another process writes the reply."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from harness.workspace.file_watch import FileWatch
from harness.workspace.files import atomic_write

Reply = TypeVar("Reply", bound=BaseModel)

_LOOK_EVERY_S = 0.5
"""A watch can miss events: this is the longest time between two attempts to read the reply."""


def wait_for_reply(
    order_file: Path,
    order: BaseModel,
    reply_file: Path,
    reply: type[Reply],
    *,
    stop: threading.Event,
    within_s: float,
    missing: str,
) -> Reply | None:
    """Write an order and wait for its reply. The caller removes the files.

    Args:
        order_file: the file of the order.
        order: the order.
        reply_file: a file in the same directory.
        reply: the reply's model.
        stop: ends the wait.
        within_s: deadline from the call, in seconds.
        missing: the error's message at the deadline.

    Returns:
        The reply; None if `stop` was set first.

    Raises:
        TimeoutError: no valid reply within `within_s`.
    """
    until = time.monotonic() + within_s
    with FileWatch(reply_file.parent) as changes:
        atomic_write(order_file, order.model_dump_json())
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError, ValidationError):
                return reply.model_validate_json(reply_file.read_bytes())
            if time.monotonic() > until:
                raise TimeoutError(missing)
            changes.wait(_LOOK_EVERY_S, stop=stop)
    return None
