"""The rules that make a champion. Pure: the index, the audit, the proof and the daemon all apply these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from harness.model.verdict import Trust, Verdict


class SpeedupRecord(Protocol):
    """What the rules read of a measurement: a ledger entry, or its row in the index."""

    @property
    def seq(self) -> int: ...  # noqa: D102
    @property
    def verdict(self) -> str | None: ...  # noqa: D102
    @property
    def trust(self) -> str | None: ...  # noqa: D102
    @property
    def speedup_ci95_low(self) -> float | None: ...  # noqa: D102


Record = TypeVar("Record", bound=SpeedupRecord)


def rank(record: SpeedupRecord) -> tuple[bool, float]:
    """Return the sort key of PASSED measurements: the interval's lower bound, launch-bound ones below all others.

    Bounded and sealed numbers compare as they are: each is a ratio of two measurements by the same clock. All three
    need one order, because "a launch-bound number never outranks a sealed one" alone is not transitive
    (sealed 1.2 > launch-bound 3.0 > bounded 2.0 > sealed 1.2).
    """
    low = record.speedup_ci95_low
    return record.trust != Trust.LAUNCH_BOUND, low if low is not None else 0.0


def is_new_champion(confirmation: SpeedupRecord, champion: SpeedupRecord | None) -> bool:
    """Return whether a confirmation makes a champion: PASSED, its lower bound above 1 and above the champion's."""
    low = confirmation.speedup_ci95_low
    if confirmation.verdict != Verdict.PASSED or low is None or low <= 1.0:
        return False
    return champion is None or rank(confirmation) > rank(champion)


def needs_confirmation(evaluation: SpeedupRecord, champion: SpeedupRecord | None) -> bool:
    """Return whether an evaluation is measured again: it is, when it would make a champion by its own numbers."""
    return is_new_champion(evaluation, champion)


def champion_of(confirmations: Iterable[Record]) -> Record | None:
    """Return the champion among a problem's confirmations (one target, run and digest); the earliest of equals."""
    champion: Record | None = None
    for confirmation in sorted(confirmations, key=lambda record: record.seq):
        if is_new_champion(confirmation, champion):
            champion = confirmation
    return champion
