"""The rules of champions: one order for rows of the index and for ledger entries."""

from __future__ import annotations

import pytest

from harness.ledger.entry_rows import Row
from harness.model.champions import best_of, champion_of, counts, is_new_champion, rank
from harness.model.entry import Entry
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.verdict import Trust
from tests.ledger.ledgers import PROBLEM, draft

ROW = Row(
    PROBLEM,
    1,
    "confirmation",
    "main",
    "cpu",
    "sha256:b",
    "2026",
    judge_protocol=JUDGE_PROTOCOL,
    verdict="PASSED",
    trust="bounded",
)


def measured(speedup_ci95_low: float | None, trust: str = "bounded", seq: int = 1, verdict: str = "PASSED") -> Row:
    return ROW._replace(speedup_ci95_low=speedup_ci95_low, trust=trust, seq=seq, verdict=verdict)


@pytest.mark.parametrize(
    ("evaluation", "champion", "expected"),
    [
        (measured(1.2), None, True),
        (measured(1.0), None, False),
        (measured(0.8), None, False),
        (measured(None), None, False),
        (measured(2.0, verdict="SUSPECT"), None, False),
        (measured(1.2), measured(1.1), True),
        (measured(1.1), measured(1.1), False),
        (measured(3.0, "launch-bound"), measured(1.1, "sealed"), False),
        (measured(3.0, "launch-bound"), measured(1.1, "bounded"), False),
        (measured(1.1, "sealed"), measured(3.0, "launch-bound"), True),
        (measured(1.3, "bounded"), measured(1.2, "sealed"), True),
    ],
)
def test_a_higher_lower_bound_of_a_trusted_pass_makes_a_champion(
    evaluation: Row, champion: Row | None, expected: bool
) -> None:
    assert is_new_champion(evaluation, champion) is expected


def test_the_rank_is_a_total_order() -> None:
    rows = [measured(ci95_low, trust) for ci95_low in (1.1, 2.0, 3.0) for trust in Trust]
    ordered = sorted(rows, key=rank)
    assert [row.trust for row in ordered[:3]] == ["launch-bound"] * 3
    assert champion_of(reversed([measured(1.2, seq=1), measured(1.2, seq=2)])) == measured(1.2, seq=1)


def test_entries_and_rows_have_the_same_order() -> None:
    place = {"prev": None, "at": "2026-11-21T02:00:00.000Z"}
    drafts = [draft("confirmation", cites=1, speedup=speedup) for speedup in (1.5, 1.2, 2.0)]
    entries = [
        Entry.model_validate({**dict(new_entry), "seq": seq, **place}) for seq, new_entry in enumerate(drafts, 1)
    ]
    rows = [measured(entry.speedup_ci95_low, str(entry.trust), entry.seq) for entry in entries]
    assert [rank(row) for row in rows] == [rank(entry) for entry in entries]
    champion = champion_of(entries)
    assert champion is entries[2]
    assert champion_of(rows) == rows[2]


def test_numbers_of_another_judge_protocol_do_not_count_and_never_stand_above_newer_ones() -> None:
    old = measured(9.0, seq=1)._replace(judge_protocol=JUDGE_PROTOCOL - 1)
    new = measured(1.1, "launch-bound", seq=2)
    assert (counts(old), counts(new)) == (False, True)
    assert rank(new) > rank(old)
    assert champion_of([old, new]) is new
    assert champion_of([old]) is None
    assert champion_of([old], JUDGE_PROTOCOL - 1) is old
    assert champion_of([old, measured(0.9, seq=2)]) is None, "a failed measurement restores no old champion"


def test_the_best_of_a_protocol_are_its_champion_and_runner_up_or_its_best_evaluation() -> None:
    rows = [measured(ci95_low, seq=seq)._replace(tree=tree) for seq, (ci95_low, tree) in enumerate(_TREES, 1)]
    assert [row.seq for row in best_of(rows)] == [2, 4]
    evaluations = [row._replace(kind="evaluation") for row in rows]
    assert [row.seq for row in best_of([rows[2], *evaluations])] == [2]
    assert best_of([measured(2.0, verdict="SUSPECT")]) == []


_TREES = ((1.3, "a"), (1.5, "a"), (0.8, "b"), (1.2, "c"), (1.1, "d"))
