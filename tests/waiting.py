"""Wait for what must happen, with a deadline; never sleep in hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 120.0
"""No test depends on a quiet machine: a deadline only ends what hangs."""


def wait_until(
    condition: Callable[[], T | None], *, what: str, deadline_s: float = DEADLINE_S, poll_s: float = 0.02
) -> T:
    """The first truthy value of `condition`.

    Raises:
        TimeoutError: naming `what`, when it did not come within `deadline_s`.
    """
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(poll_s)
    raise TimeoutError(f"{what} did not happen within {deadline_s:.1f} s")
