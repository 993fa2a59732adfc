"""The words of judging. Verdicts are SOL-ExecBench's, and SUSPECT."""

from __future__ import annotations

from enum import StrEnum

CLOCK_ERROR = 0.02
"""Share by which a latency may be below the hardware's floor: the error of the clocks."""


def least_possible_us(floor_us: float) -> float:
    """Return the latency in microseconds below which a measurement is impossible, from the hardware's floor."""
    return floor_us * (1 - CLOCK_ERROR)


class Verdict(StrEnum):
    """What one evaluation decided."""

    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"
    REWARD_HACK = "REWARD_HACK"
    INVALID_REFERENCE = "INVALID_REFERENCE"
    SUSPECT = "SUSPECT"
    """Faster than the hardware allows, or the clocks disagree: held for a person."""


class Trust(StrEnum):
    """How hard a number is to forge; see docs/judge.md."""

    SEALED = "sealed"
    RECORDED = "recorded"
    """Launches recorded from a solution's own process and replayed as those of a sealed one."""
    BOUNDED = "bounded"
    LAUNCH_BOUND = "launch-bound"

    @property
    def by_events(self) -> bool:
        """Timed by the device's events, in a process without host code of the solution."""
        return self in (Trust.SEALED, Trust.RECORDED)


class EntryKind(StrEnum):
    """What a ledger entry records."""

    EVALUATION = "evaluation"
    CONFIRMATION = "confirmation"
    BASELINE = "baseline"
    CHAMPION = "champion"
    NOTE = "note"
