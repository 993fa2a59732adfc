"""The rules that make a champion. Pure: the index, the audit, the proof and the daemon all apply these.

A speed-up means what the judge's protocol version says that it means, so numbers of different versions are not
compared: only those of the newest version count, and older ones are history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from harness.model.judging import JUDGE_PROTOCOL
from harness.model.verdict import EntryKind, Trust, Verdict

_REMEASURED = 2
"""The champion, and the runner-up: what a person may have chosen to merge, and what follows if the champion fails."""


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
    @property
    def judge_protocol(self) -> int | None: ...  # noqa: D102


class CandidateRecord(SpeedupRecord, Protocol):
    """A measurement of a candidate in the index."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def tree(self) -> str | None: ...  # noqa: D102


Candidate = TypeVar("Candidate", bound=CandidateRecord)
Record = TypeVar("Record", bound=SpeedupRecord)


def counts(record: SpeedupRecord) -> bool:
    """Return whether a measurement counts: a judge of this harness' protocol version made it."""
    return record.judge_protocol == JUDGE_PROTOCOL


def rank(record: SpeedupRecord) -> tuple[int, bool, float]:
    """Return the sort key of PASSED measurements: the interval's lower bound, launch-bound ones below all others.

    A measurement by a newer judge protocol is above every one by an older protocol, whatever the numbers are.
    Bounded and sealed numbers compare as they are: each is a ratio of two measurements by the same clock. All three
    need one order, because "a launch-bound number never outranks a sealed one" alone is not transitive
    (sealed 1.2 > launch-bound 3.0 > bounded 2.0 > sealed 1.2).
    """
    low = record.speedup_ci95_low
    return record.judge_protocol or 0, record.trust != Trust.LAUNCH_BOUND, low if low is not None else 0.0


def is_new_champion(confirmation: SpeedupRecord, champion: SpeedupRecord | None) -> bool:
    """Return whether a confirmation makes a champion: PASSED, its lower bound above 1 and above the champion's.

    A champion of an older judge protocol gives way to any such confirmation by a newer one.
    """
    low = confirmation.speedup_ci95_low
    if confirmation.verdict != Verdict.PASSED or low is None or low <= 1.0:
        return False
    return champion is None or rank(confirmation) > rank(champion)


def needs_confirmation(evaluation: SpeedupRecord, champion: SpeedupRecord | None) -> bool:
    """Return whether an evaluation is measured again: it is, when it would make a champion by its own numbers."""
    return is_new_champion(evaluation, champion)


def champion_of(confirmations: Iterable[Record], protocol: int = JUDGE_PROTOCOL) -> Record | None:
    """Return the champion among a problem's confirmations (one target, run and digest); the earliest of equals.

    Args:
        confirmations: of any judge protocol.
        protocol: the judge protocol whose confirmations count.
    """
    champion: Record | None = None
    for confirmation in sorted(confirmations, key=lambda record: record.seq):
        if confirmation.judge_protocol == protocol and is_new_champion(confirmation, champion):
            champion = confirmation
    return champion


def best_of(measurements: Iterable[Candidate]) -> list[Candidate]:
    """Return the champion and the runner-up of one judge protocol, or the best evaluation where nothing is confirmed.

    Args:
        measurements: evaluations and confirmations of a problem (one target, run, digest and judge protocol).
    """
    passed = [row for row in measurements if row.verdict == Verdict.PASSED]
    winners = [row for row in passed if row.kind == EntryKind.CONFIRMATION and is_new_champion(row, None)]
    by_tree: dict[str | None, Candidate] = {}
    for row in sorted(winners or passed, key=lambda row: (rank(row), -row.seq), reverse=True):
        by_tree.setdefault(row.tree, row)
    return list(by_tree.values())[: _REMEASURED if winners else 1]
