"""The quick parser reads the writer's documents exactly as PyYAML does, and passes all others to PyYAML."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import LedgerError
from harness.formats import ledger_quick_parse
from harness.formats.ledger_documents import parse, render
from harness.formats.ledger_quick_parse import parse_quickly

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
DOCUMENT = {"seq": 3, "prev": None, "kind": "evaluation", "candidate": {"commit": "c" * 40, "worker": "w01"}}


@given(st.dictionaries(st.text(max_size=12).filter(lambda key: key != "seq"), VALUES, max_size=5), st.integers(0, 9))
def test_both_parsers_agree_on_what_is_written(fields: dict[str, Any], seq: int) -> None:
    raw = render({**fields, "seq": seq, "format": 1})
    assert parse_quickly(raw, "x") == parse(raw, "x")


@pytest.fixture
def without_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_quick_parse, "parse", lambda *_: pytest.fail("PyYAML was asked"))


@pytest.mark.usefixtures("without_yaml")
def test_an_entry_without_escapes_is_read_without_yaml() -> None:
    wide = {f"key_{number}": {"low": -1.5e-07, "high": 1e22, "why": "a: b, {c: d}\u00e9"} for number in range(9)}
    document = {**DOCUMENT, "summary": wide, "odd key": [1, True, None, {"yes": 2}], "at": "now", "empty": {}}
    assert parse_quickly(render(document), "x") == document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('---\nseq: 1\nreason: "a \\x07 and \\" b"\n', 'a \x07 and " b'),
        ("---\nseq: 1\nreason: 'single: quotes'\n", "single: quotes"),
        ("---\nseq: 1\nreason: NaN\n", "NaN"),
        ("---\nseq: 1\nreason: .inf\n", math.inf),
        ("---\nseq: 1\nreason: 017\n", 15),
        ("---\nseq: 1\nreason:\n- {a: 1}\n- {a: 2}\n", [{"a": 1}, {"a": 2}]),
        ('---\nseq: 1\nreason: "two\n  lines"\n', "two lines"),
        ("---\nseq: 1\nreason: 7  # a remark\n", 7),
    ],
)
def test_another_layout_is_left_to_yaml(text: str, value: object) -> None:
    assert parse_quickly(text.encode(), "x")["reason"] == value


@pytest.mark.parametrize(
    "raw", [b"---\nseq: \xff\n", b"---\nno: 1\n", b"[]", b'---\nseq: "1"\n', b"---\nseq: 1\nformat: 99\n"]
)
def test_what_is_no_document_is_refused_alike(raw: bytes) -> None:
    with pytest.raises(LedgerError) as expected:
        parse(raw, "x")
    with pytest.raises(LedgerError) as quick:
        parse_quickly(raw, "x")
    assert str(quick.value) == str(expected.value)
