"""Enumerations of judging: verdicts, trust, kinds of entries. All verdicts except SUSPECT are SOL-ExecBench's."""

from __future__ import annotations

from enum import StrEnum

CLOCK_ERROR = 0.02
"""Share by which a latency may be below the hardware's floor, because clocks have errors."""


def least_possible_us(floor_us: float) -> float:
    """Return the latency in microseconds below which a measurement is impossible, from the hardware's floor."""
    return floor_us * (1 - CLOCK_ERROR)


class Verdict(StrEnum):
    """Result of one evaluation."""

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
    """The latency is below the hardware's floor, or the clocks disagree: a person must decide."""


class Trust(StrEnum):
    """Resistance of a measurement to forgery (docs/judge.md)."""

    SEALED = "sealed"
    RECORDED = "recorded"
    """Launches were recorded in the solution's process and replayed like those of a sealed solution."""
    BOUNDED = "bounded"
    LAUNCH_BOUND = "launch-bound"

    @property
    def by_events(self) -> bool:
        """True if the device's events timed the calls, in a process without host code of the solution."""
        return self in (Trust.SEALED, Trust.RECORDED)


class EntryKind(StrEnum):
    """Kind of a ledger entry."""

    EVALUATION = "evaluation"
    CONFIRMATION = "confirmation"
    BASELINE = "baseline"
    CHAMPION = "champion"
    NOTE = "note"
