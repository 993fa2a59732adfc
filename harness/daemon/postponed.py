"""Work that waits after a fault of this machine: the same measurement is tried again after a pause that grows.

Kept in memory only: after a restart everything is tried at once. A fault of the machine is never a candidate's verdict.
Memory and processes are an exception where a candidate is not limited: one that runs out of them again and again while
others are judged in between is the cause.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_MOST_ALONE = 3
"""Faults for want of memory, with answers about others between them, that are the measurement's own doing."""


@dataclass
class _Postponed:
    until: float
    pause_s: float
    answers: int
    alone: int = 0


class PostponedWork:
    """Measurements that wait, by their identity. One thread."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], _Postponed] = {}
        self._answers = 0

    def postpone(self, identity: Sequence[str]) -> bool:
        """Make a measurement wait, longer each time.

        Returns:
            Whether it alone meets the fault: others were answered between each of its last faults.
        """
        now, key = time.monotonic(), tuple(identity)
        one = self._waiting.get(key)
        if one is None:
            self._waiting[key] = _Postponed(now + FIRST_PAUSE_S, FIRST_PAUSE_S, self._answers)
            return False
        one.alone += self._answers > one.answers
        one.pause_s = min(2 * one.pause_s, LONGEST_PAUSE_S)
        one.until, one.answers = now + one.pause_s, self._answers
        return one.alone >= _MOST_ALONE

    def waits(self, identity: Sequence[str]) -> bool:
        """Return whether a measurement's pause is not over yet."""
        one = self._waiting.get(tuple(identity))
        return one is not None and time.monotonic() < one.until

    def answered(self, identity: Sequence[str]) -> None:
        """Forget a measurement: a judge has answered it."""
        self._answers += 1
        self._waiting.pop(tuple(identity), None)
