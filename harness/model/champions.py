"""Pure rules that select a champion; the index, the audit, the proof and the daemon apply them.

The judge's protocol version defines the meaning of a speed-up, so numbers of different versions are not compared.
Only measurements of the newest version count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from harness.model.judging import JUDGE_PROTOCOL
from harness.model.verdict import EntryKind, Trust, Verdict

_REMEASURED = 2
"""The champion, which a person may have merged, and the runner-up, which replaces it if its new measurement fails."""


class SpeedupRecord(Protocol):
    """Fields of a measurement that the rules read: of a ledger entry, or of its row in the index."""

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
    """Return whether a measurement counts: a judge of this harness' protocol version measured it."""
    return record.judge_protocol == JUDGE_PROTOCOL


def rank(record: SpeedupRecord) -> tuple[int, bool, float]:
    """Return the sort key of PASSED measurements: judge protocol, then trust, then lower bound of the 95 % interval.

    Every measurement by a newer judge protocol ranks above those by an older one. Within a protocol, launch-bound
    measurements rank below all others. Bounded and sealed speed-ups are comparable, because each is a ratio of two
    measurements by the same clock. A total order is needed: the single rule "a launch-bound number never outranks a
    sealed one" is not transitive (sealed 1.2 > launch-bound 3.0 > bounded 2.0 > sealed 1.2).
    """
    return record.judge_protocol or 0, record.trust != Trust.LAUNCH_BOUND, record.speedup_ci95_low or 0.0


def is_new_champion(confirmation: SpeedupRecord, champion: SpeedupRecord | None) -> bool:
    """Return whether a confirmation makes its candidate champion, or an evaluation must be confirmed because it would.

    It does when it PASSED, its lower bound is above 1 and it ranks above the champion. A confirmation by a newer
    judge protocol always ranks above a champion by an older one.

    Args:
        confirmation: the measurement to decide on: a confirmation or an evaluation.
        champion: confirmation of the current champion; None without a champion.
    """
    ci95_low = confirmation.speedup_ci95_low
    if confirmation.verdict != Verdict.PASSED or ci95_low is None or ci95_low <= 1.0:
        return False
    return champion is None or rank(confirmation) > rank(champion)


def champion_of(confirmations: Iterable[Record], protocol: int = JUDGE_PROTOCOL) -> Record | None:
    """Return the champion among confirmations of one problem, target, run and digest; the earliest of equal ones.

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
    """Return the champion and the runner-up of one judge protocol, or the best evaluation if there is no champion.

    Args:
        measurements: evaluations and confirmations of a problem (one target, run, digest and judge protocol).
    """
    passed = [row for row in measurements if row.verdict == Verdict.PASSED]
    confirmed = [row for row in passed if row.kind == EntryKind.CONFIRMATION and is_new_champion(row, None)]
    by_tree: dict[str | None, Candidate] = {}
    for row in sorted(confirmed or passed, key=lambda row: (rank(row), -row.seq), reverse=True):
        by_tree.setdefault(row.tree, row)
    return list(by_tree.values())[: _REMEASURED if confirmed else 1]
