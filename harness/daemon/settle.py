"""What follows from a problem's entries: which evaluation must be confirmed, which confirmation makes a champion.

Read from the ledger each time, so that a daemon that was killed between two steps takes the second.
"""

from __future__ import annotations

from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.model.champions import champion_of, needs_confirmation, rank
from harness.model.verdict import EntryKind


def due(index: Index, problem: str, digest: str, target: str, judge: str, run: str) -> tuple[Row | None, Row | None]:
    """The evaluation to be confirmed now, and the confirmation to be made champion now.

    Entries of earlier forms of the problem do not count. An evaluation is confirmed by the judge version that made it;
    those of earlier versions are evaluated again instead.
    """
    rows = [row for row in index.rows(problem, target=target, run=run) if row.problem_digest == digest]
    confirmations = [row for row in rows if row.kind == EntryKind.CONFIRMATION]
    champion = champion_of(confirmations)
    confirmed = {row.cites for row in confirmations}
    crowned = {row.cites for row in rows if row.kind == EntryKind.CHAMPION}
    waiting = [
        row
        for row in rows
        if row.kind == EntryKind.EVALUATION
        and row.judge == judge
        and row.seq not in confirmed
        and needs_confirmation(row, champion)
    ]
    crown = champion if champion is not None and champion.seq not in crowned else None
    return max(waiting, key=rank, default=None), crown
