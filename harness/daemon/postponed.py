"""Work that waits after a fault of this machine: the same measurement is tried again after a growing pause.

It is in memory only: after a restart everything is tried immediately. A fault of the machine is never a candidate's
verdict. There is one exception, for memory and processes of candidates without limits. A candidate that runs out of
them repeatedly, while others are judged in between, is the cause.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_MOST_ALONE = 3
"""Faults of missing memory, with answers to other requests between them, that count against the measurement."""


@dataclass
class _Postponed:
    until_s: float
    """End of the pause on the monotonic clock."""
    pause_s: float
    answers_before: int
    """Answers about other measurements before its last fault."""
    faults_alone: int = 0
    """Faults with answers about other measurements between them."""


class PostponedWork:
    """Measurements that wait, by their identity. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], _Postponed] = {}
        self._answers = 0

    def postpone(self, identity: Sequence[str]) -> bool:
        """Make a measurement wait, for a longer pause each time.

        Returns:
            True if only this measurement has the fault: others were answered between its last faults.
        """
        present_s, key = time.monotonic(), tuple(identity)
        entry = self._waiting.get(key)
        if entry is None:
            self._waiting[key] = _Postponed(present_s + FIRST_PAUSE_S, FIRST_PAUSE_S, self._answers)
            return False
        entry.faults_alone += self._answers > entry.answers_before
        entry.pause_s = min(2 * entry.pause_s, LONGEST_PAUSE_S)
        entry.until_s, entry.answers_before = present_s + entry.pause_s, self._answers
        return entry.faults_alone >= _MOST_ALONE

    def waits(self, identity: Sequence[str]) -> bool:
        """Return whether a measurement's pause continues."""
        entry = self._waiting.get(tuple(identity))
        return entry is not None and time.monotonic() < entry.until_s

    def count_answer(self, identity: Sequence[str]) -> None:
        """Remove a measurement that a judge has answered."""
        self._answers += 1
        self._waiting.pop(tuple(identity), None)
