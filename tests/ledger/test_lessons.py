"""Lessons are valid until a later entry contradicts them."""

from __future__ import annotations

from typing import Any

from harness.ledger.entry_rows import Row
from harness.ledger.lessons import champion_lessons, standing_notes

P = "t/one"


def row(seq: int, tree: str, speedup: float | None, kind: str = "evaluation", cites: int | None = None) -> Row:
    ci95_low, ci95_high = (speedup - 0.05, speedup + 0.05) if speedup else (None, None)
    return Row(
        problem=P,
        seq=seq,
        kind=kind,
        run="main",
        target="cpu",
        problem_digest="d",
        at="",
        cites=cites,
        tree=tree,
        worker="w01",
        verdict="PASSED" if speedup else "INCORRECT_NUMERICAL",
        speedup=speedup,
        speedup_ci95_low=ci95_low,
        speedup_ci95_high=ci95_high,
    )


def note(identity: str, text: str, entry: int | None = None, contradicts: str | None = None) -> dict[str, Any]:
    record = {
        "id": identity * 8,
        "problem": P,
        "worker": "w02",
        "text": text,
        "entry": entry,
        "contradicts": contradicts,
    }
    return {name: value for name, value in record.items() if value is not None}


def lines(records: list[dict[str, Any]], rows: list[Row]) -> list[str]:
    return [lesson.line(P) for lesson in standing_notes(P, records, rows)]


def test_a_note_is_shown_with_the_entry_that_proves_it() -> None:
    rows = [row(1, "a", 1.5), row(2, "b", None)]
    records = [note("a", "wide loads help", 1), note("b", "tiles of 8 fail", 2), note("c", "no idea left")]
    assert lines(records, rows) == [
        "[aaaaaaaa] w02: wide loads help (entry 1: PASSED 1.500x)",
        "[bbbbbbbb] w02: tiles of 8 fail (entry 2: INCORRECT_NUMERICAL)",
        "[cccccccc] w02: no idea left",
    ]


def test_a_note_is_withdrawn_when_its_solution_is_measured_otherwise() -> None:
    records = [note("a", "wide loads help", 1)]
    assert lines(records, [row(1, "a", 1.5), row(4, "a", 1.52, "confirmation")]) != [], "the same again"
    assert lines(records, [row(1, "a", 1.5), row(4, "a", 1.1, "confirmation")]) == [], "slower"
    assert lines(records, [row(1, "a", 1.5), row(4, "a", None)]) == [], "wrong"
    assert lines(records, [row(1, "a", 1.5), row(4, "b", None)]) != [], "another solution"


def test_a_note_is_withdrawn_when_a_later_entry_is_named_against_it() -> None:
    rows = [row(1, "a", 1.5), row(2, "b", 1.9), row(3, "c", 2.0)]
    old = note("a", "prefetching costs", 2)
    assert lines([old, note("b", "it pays further ahead", 3, "aaaaaaaa")], rows) == [
        "[bbbbbbbb] w02: it pays further ahead (entry 3: PASSED 2.000x)"
    ]
    assert len(lines([old, note("b", "I doubt it", 1, "aaaaaaaa")], rows)) == 2, "an earlier entry contradicts nothing"
    assert len(lines([old, note("b", "I doubt it", None, "aaaaaaaa")], rows)) == 2, "text alone contradicts nothing"


def test_the_change_of_a_champion_is_a_lesson_until_another_measurement() -> None:
    rows = [
        row(1, "a", 1.5),
        row(2, "a", 1.5, "confirmation", 1),
        row(3, "a", None, "champion", 2),
        row(4, "b", 2.0),
        row(5, "b", 2.0, "confirmation", 4),
        row(6, "b", None, "champion", 5),
    ]
    messages = {"a": "one pass", "b": "AVX-512"}
    lines = [lesson.line(P) for lesson in champion_lessons(P, rows, messages)]
    assert lines == [
        "w01: made it 1.500x, 1.000x before: one pass (entry 2: PASSED 1.500x)",
        "w01: made it 2.000x, 1.500x before: AVX-512 (entry 5: PASSED 2.000x)",
    ]
    later = [*rows, row(7, "b", 1.4, "confirmation", 4)]
    assert [lesson.proof for lesson in champion_lessons(P, later, messages)] == [2]


def test_a_lesson_of_the_family_names_its_problem() -> None:
    (lesson,) = standing_notes("t/two", [note("a", "text", 1)], [row(1, "a", 1.5)])
    assert lesson.line(P) == "[aaaaaaaa] on t/two, w02: text (entry 1: PASSED 1.500x)"
