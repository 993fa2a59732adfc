"""Ledger documents are read back exactly, with YAML 1.1 and with YAML 1.2."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import LedgerError
from harness.formats.ledger_documents import HEADER, field_of, parse, render, split

# YAML 1.2.2, 10.3.2 (core schema), and YAML 1.1's float type as PyYAML resolves it.
_CORE_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CORE_INT = re.compile(r"[-+]?[0-9]+")
_YAML11_FLOAT = yaml.SafeLoader.yaml_implicit_resolvers["1"]

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_floats = st.floats(allow_nan=False)
_scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | _floats | _text
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_text, inner, max_size=5), max_leaves=20
)
_documents = st.dictionaries(_text, _values, max_size=6)


@given(_documents)
def test_any_document_reads_back_exactly(document: dict[str, Any]) -> None:
    document = {**document, "seq": 1, "format": 1}  # random documents may have these keys with other values
    raw = render(document)
    assert parse(raw, "x") == document
    assert yaml.safe_load(raw) == document  # the pure Python loader too


@given(st.lists(_documents, min_size=1, max_size=3))
def test_documents_split_into_their_exact_bytes(documents: list[dict[str, Any]]) -> None:
    raws = [render({"a": 1, **document}) for document in documents]
    content = HEADER + b"".join(raws)
    documents_read = split(content, "x")
    assert [document.raw for document in documents_read] == raws
    assert [content[document.start :][: len(document.raw)] for document in documents_read] == raws
    assert [document.raw for document in split(content, "x", start=len(HEADER) + len(raws[0]))] == raws[1:]


@given(_floats)
def test_a_float_is_one_for_every_reader(value: float) -> None:
    text = render({"v": value}).decode().removeprefix("---\nv: ").rstrip()
    assert _CORE_FLOAT.fullmatch(text)
    assert not _CORE_INT.fullmatch(text)
    assert any(tag.endswith(":float") and pattern.match(text) for tag, pattern in _YAML11_FLOAT) or text[0] in "-."
    assert parse(render({"seq": 1, "v": value}), "x")["v"] == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-05, "1.0e-05"), (1e22, "1.0e+22"), (2.0, "2.0"), (1.5e-7, "1.5e-07"), (-1e300, "-1.0e+300"), (0.1, "0.1")],
)
def test_floats_have_a_dot_and_a_signed_exponent(value: float, text: str) -> None:
    assert render({"v": value}) == f"---\nv: {text}\n".encode()


def test_not_a_number_is_written_as_yaml_has_it() -> None:
    assert render({"v": math.nan}) == b"---\nv: .nan\n"


@pytest.mark.parametrize("word", ["no", "On", "null", "y", "a b", "1", "", "---", "é"])
def test_keys_that_yaml_would_misread_are_quoted(word: str) -> None:
    assert parse(render({"seq": 1, "m": {word: 2}, word: "no"}), "x") == {"seq": 1, "m": {word: 2}, word: "no"}


def test_no_string_can_start_a_document() -> None:
    raw = render({"seq": 1, "text": "a\n---\nseq: 2\n"})
    assert [document.raw for document in split(HEADER + raw, "x")] == [raw]
    assert field_of(raw, "seq") == "1"


def test_half_a_character_becomes_the_replacement_character() -> None:
    assert parse(render({"seq": 1, "text": "a\udc80"}), "x")["text"] == "a\ufffd"


def test_rows_are_laid_out_as_documented() -> None:
    raw = render(
        {
            "seq": 41,
            "prev": None,
            "candidate": {"commit": "c" * 40, "tree": "d" * 40, "branch": "agents/main/w03/L1/rmsnorm_h4096"},
            "workloads": [{"uuid": "a", "speedup_ci95": [2.4, 2.44]}, {"uuid": "b", "speedup_ci95": [2.0, 3.0]}],
            "empty": [],
        }
    )
    assert raw.decode() == (
        '---\nseq: 41\nprev: null\ncandidate: {commit: "' + "c" * 40 + '", tree: "' + "d" * 40 + '",\n'
        '   branch: "agents/main/w03/L1/rmsnorm_h4096"}\nworkloads:\n- {uuid: "a", speedup_ci95: [2.4, 2.44]}\n'
        '- {uuid: "b", speedup_ci95: [2.0, 3.0]}\nempty: []\n'
    )


@pytest.mark.parametrize("value", [b"bytes", {1: 2}, {"k" * 300: 1}, object(), {1, 2}])
def test_values_that_yaml_cannot_express_are_refused(value: object) -> None:
    with pytest.raises(LedgerError):
        render({"v": value})


def test_a_newer_format_names_the_command_that_reads_it() -> None:
    with pytest.raises(LedgerError) as caught:
        split(HEADER.replace(b"1", b"3"), "ledger/a/b.yaml")
    assert str(caught.value) == (
        "ledger/a/b.yaml:1: the ledger file has format 3, and this harness reads format 1\n"
        "  install a newer kernel-harness: build its wheel in a newer clone, then "
        "`pip install dist/kernel_harness-*.whl`"
    )


def test_a_file_without_its_head_line_is_refused() -> None:
    with pytest.raises(LedgerError, match=r"ledger/a/b.yaml:1: not a ledger file: its first line must be `# kernel-"):
        split(b"---\nseq: 1\n", "ledger/a/b.yaml")


@pytest.mark.parametrize("raw", [b"---\nseq: [1\n", b"---\n- 1\n", b"---\nseq: a\n", b"---\nseq: true\n", b"---\n\x00"])
def test_what_is_no_document_is_named(raw: bytes) -> None:
    with pytest.raises(LedgerError, match=r"^here: not "):
        parse(raw, "here")
