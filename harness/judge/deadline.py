"""The time at which judging a candidate stops."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from harness.judge.runners import RunnerFailed
from harness.model.verdict import Verdict

_MOST_GENERATION_S = 300.0
"""Seconds of drawing inputs that do not count as judging time; a judge without an answer counts as hung later than
that (`harness.workspace.judge_client.MARGIN_S`)."""


class Deadline:
    """The time at which judging a candidate stops. Work of the judge that is not the candidate's extends it.

    Args:
        within_s: seconds from now on.
    """

    def __init__(self, within_s: float) -> None:
        self._at = time.monotonic() + within_s
        self._generation_s = 0.0

    def extend(self, seconds: float) -> None:
        """Move the deadline by the duration of other work."""
        self._at += seconds

    @contextlib.contextmanager
    def extended(self) -> Iterator[None]:
        """Do not count the time inside this context."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.extend(time.monotonic() - begin)

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """Do not count the time inside this context, in which inputs are drawn; at most five minutes in all."""
        begin = time.monotonic()
        yield
        spent_s = min(time.monotonic() - begin, _MOST_GENERATION_S - self._generation_s)
        self._generation_s += spent_s
        self._at += spent_s

    def remaining_s(self) -> float:
        """Return the seconds that are left.

        Raises:
            RunnerFailed: none is left.
        """
        remaining = self._at - time.monotonic()
        if remaining <= 0:
            raise RunnerFailed(Verdict.TIMEOUT, "judging took longer than max_judge_s allows")
        return remaining
