"""The audit of entries that repeat a measurement of the same compiled code."""

from __future__ import annotations

import pytest

from harness.model.entry import EntryDraft, Fingerprint
from harness.model.judging import Cost
from tests.ledger.audited_place import Place, changed


def repeating(place: Place) -> list[EntryDraft]:
    """Return a baseline, an evaluation of compiled code, a repetition answered from it, and one of other code."""
    measured = place.draft(number=0, cites=1).model_copy(
        update={"fingerprint": Fingerprint(source="sha256:1", binary="sha256:b")}
    )
    own = {"candidate": place.draft(number=1).candidate, "fingerprint": Fingerprint(binary="sha256:b")}
    of_other_code = place.draft(number=2, cites=1).model_copy(update={"fingerprint": Fingerprint(binary="sha256:c")})
    return [
        place.draft("baseline"),
        measured,
        measured.model_copy(update={**own, "answered_from": 2, "cost": Cost(build_s=0.1)}),
        of_other_code,
    ]


def test_an_entry_that_repeats_a_measurement_has_no_breaks(place: Place) -> None:
    place.enter(repeating(place))
    assert place.breaks() == []


@pytest.mark.parametrize(
    ("seq", "path", "value", "message"),
    [
        (3, ("answered_from",), 1, "answered from an entry that is not an earlier evaluation"),
        (3, ("answered_from",), 3, "answered from an entry that is not an earlier evaluation"),
        (3, ("answered_from",), 99, "answered from an entry that is not an earlier evaluation"),
        (3, ("answered_from",), 4, "answered from an entry that is not an earlier evaluation"),
        (4, ("answered_from",), 2, "answered from seq 2 of another binary"),
        (4, ("answered_from",), 3, "answered from seq 3, which was not measured itself"),
        (3, ("fingerprint", "binary"), "sha256:other", "answered from seq 2 of another binary"),
        (2, ("fingerprint",), {}, "answered from seq 2 of another binary"),
        (3, ("workloads", 0, "matched"), 0.99, "answered from seq 2, which has another value of workloads"),
        (3, ("run",), "other", "answered from seq 2, which has another value of run"),
        (3, ("trust",), "sealed", "answered from seq 2, which has another value of trust"),
        (3, ("device", "id"), "cpu:9", "answered from seq 2, which has another value of device"),
        (1, ("answered_from",), 1, "format: entry: Value error, an entry of kind baseline is not answered"),
    ],
)
def test_the_audit_reports_a_forged_repetition(
    place: Place, seq: int, path: tuple[str | int, ...], value: object, message: str
) -> None:
    place.enter(repeating(place))
    place.forge(changed(seq, path, value))
    breaks = [(item.seq, item.message) for item in place.breaks()]
    seq_of_break = 3 if (seq, path) == (2, ("fingerprint",)) else seq
    assert any(number == seq_of_break and text.startswith(message) for number, text in breaks), breaks
