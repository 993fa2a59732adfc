"""Wait for a condition with a deadline, instead of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 120.0
"""A deadline only ends a test that hangs; it is long, because no test may depend on a quiet machine."""


def wait_until(
    condition: Callable[[], T | None], *, event: str, deadline_s: float = DEADLINE_S, poll_s: float = 0.02
) -> T:
    """Return the first truthy value of a condition.

    Args:
        condition: called until its value is truthy.
        event: the event to wait for, as a noun phrase of the error's message.
        deadline_s: the longest wait, in seconds.
        poll_s: the pause between two calls, in seconds.

    Raises:
        TimeoutError: the value was not truthy within `deadline_s`.
    """
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(poll_s)
    raise TimeoutError(f"{event} did not happen within {deadline_s:.1f} s")
