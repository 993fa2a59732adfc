"""Texts that would overflow the C stack or the memory of a parser, or take minutes: each gives one clear error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.errors import FormatError, HarnessError
from harness.formats.bounded import (
    DOCUMENT_BYTES,
    MAX_DEPTH,
    compose_yaml,
    load_json,
    load_json_file,
    load_yaml,
    read_bytes,
    value_of,
)
from harness.formats.ledger_documents import parse_entry, split
from harness.formats.ledger_heads import HEADER, read_heads
from harness.formats.solutions import param_positions, read_spec
from harness.formats.source_lines import json_lines, parse_json, parse_yaml
from harness.formats.tensors import check_tensor
from harness.ledger.coordination import default_text, parse
from harness.model.judging import JudgeRequest

N = 50_000
LEVELS = 500
"""Levels of deep YAML. libyaml 0.2.6 refuses a thousand by itself, with other words."""
DEEP_YAML = {
    "flow lists": "[" * LEVELS,
    "flow mappings": "{a: " * LEVELS,
    "both": "[{a: " * LEVELS,
    "lists of pairs": "[a: " * LEVELS,
    "block lists in one line": "- " * LEVELS,
    "block keys in one line": "? " * LEVELS,
    "block mappings": "\n".join(" " * depth + "a:" for depth in range(MAX_DEPTH + 1)) + " 1",
    "anchors": "".join(f"&a{number} [" for number in range(LEVELS)),
    "closed again": "[" * LEVELS + "]" * LEVELS,
}
DEEP_JSON = {"lists": "[" * N, "objects": '{"a":' * N, "both": '[{"a":' * N, "closed again": "[" * N + "]" * N}


def yaml_value(text: str) -> object:
    return load_yaml(text, where="x.yaml", max_bytes=DOCUMENT_BYTES)


@pytest.mark.parametrize("name", [name for name in DEEP_YAML if name != "anchors"])
def test_deep_yaml_is_refused_by_line_before_it_is_composed(name: str) -> None:
    with pytest.raises(FormatError) as caught:
        yaml_value(DEEP_YAML[name])
    assert caught.value.message == f"nested more than {MAX_DEPTH} levels deep"
    line = MAX_DEPTH + 1 if name == "block mappings" else 1
    assert caught.value.where == f"x.yaml:{line}"
    assert caught.value.remedy


def test_very_deep_yaml_is_refused_by_libyaml_or_by_its_check() -> None:
    with pytest.raises(FormatError, match="nest") as caught:
        yaml_value("[" * N)
    assert caught.value.where == "x.yaml:1"


@pytest.mark.parametrize("name", DEEP_JSON)
def test_deep_json_is_refused_by_line_before_it_is_parsed(name: str) -> None:
    with pytest.raises(FormatError) as caught:
        load_json("\n" + DEEP_JSON[name], where="x.json", first_line=7)
    assert (caught.value.message, caught.value.where) == (f"nested more than {MAX_DEPTH} levels deep", "x.json:8")


def test_the_deepest_that_is_read() -> None:
    deepest, too_deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
    assert load_json(deepest, where="x") == yaml_value(deepest)
    with pytest.raises(FormatError, match="nested more than"):
        load_json(too_deep, where="x")
    with pytest.raises(FormatError, match="nested more than"):
        yaml_value(too_deep)


def test_brackets_in_strings_are_no_nesting() -> None:
    text = '{"a": "' + "[" * N + '\\"[{", "b\\\\": ["' + "{" * N + '"]}'
    expected = {"a": "[" * N + '"[{', "b\\": ["{" * N]}
    assert load_json(text, where="x") == expected
    assert yaml_value(text) == expected
    wide = "[" + "[]," * N + "[]]"
    assert len(load_json(wide, where="x")) == N + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "x.yaml:1: an anchor or alias; expected plain values"),
        (DEEP_YAML["anchors"], "x.yaml:1: an anchor or alias; expected plain values"),
        ("a: 1\nb: !!set {x, y}\n", "x.yaml:2: a list or mapping with a tag; expected plain values"),
        ("a: 1\nb: " + "1" * 5000, "x.yaml:2: a number of 5000 characters; expected at most 1000"),
        ("a: 0x" + "f" * 5000, "x.yaml:1: a number of 5002 characters; expected at most 1000"),
        ("a: 1" + ":59" * 5000 + ".5", "x.yaml:1: a number of 15003 characters; expected at most 1000"),
        ("a: !!int '" + "1" * 5000 + "'", "x.yaml:1: a number of 5000 characters; expected at most 1000"),
        ("a: !!int ''", "x.yaml: not YAML: string index out of range"),
        ("a: !!bool maybe", "x.yaml: not YAML: 'maybe'"),
        ("a: !!timestamp later", "x.yaml: not YAML: "),
        ("a: \ud800", "x.yaml: not YAML: "),
        ("a: \x00", "x.yaml: not YAML: unacceptable character"),
        ("".join(f"%TAG !a{number}! b\n" for number in range(40_000)) + "--- a\n", "lines begin with `%`"),
        ("a" * (DOCUMENT_BYTES + 1), f"x.yaml: {DOCUMENT_BYTES + 1} bytes; expected at most {DOCUMENT_BYTES}"),
        ("ä" * (DOCUMENT_BYTES // 2 + 1), f"x.yaml: {DOCUMENT_BYTES + 2} bytes; expected at most {DOCUMENT_BYTES}"),
    ],
)
def test_what_yaml_could_be_abused_for_is_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        yaml_value(text)
    assert message in str(caught.value)


def test_one_very_long_line_is_read() -> None:
    text = "a" * (DOCUMENT_BYTES - 10)
    assert yaml_value(f"x: {text}") == {"x": text}


def test_a_json_number_of_thousands_of_digits_is_refused() -> None:
    for text in ('{"a": ' + "1" * 5000 + "}", "[1" + "0" * 5000 + "]"):
        with pytest.raises(FormatError, match="not JSON: a number has too many digits"):
            load_json(text, where="x")


def test_bytes_that_are_no_text_are_refused_by_line() -> None:
    with pytest.raises(FormatError) as caught:
        load_json(b'{\n"a": "\xff"}', where="x.json")
    assert str(caught.value) == "x.json:2: not JSON: not UTF-8 text at byte 8"


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(FormatError, match="1099511627776 bytes; expected at most 100"):
        read_bytes(file, max_bytes=100)
    with pytest.raises(FormatError, match="expected at most"):
        load_json_file(file)


def test_pydantics_own_parser_bounds_the_nesting() -> None:
    """It parses messages between our processes, as tests/test_architecture.py permits."""
    with pytest.raises(ValidationError, match="recursion limit exceeded"):
        JudgeRequest.model_validate_json("[" * N)


# --- arbitrary texts ---

_PIECES = st.sampled_from(
    [
        "[", "]", "{", "}", ",", ":", ": ", "- ", "? ", "\n", "\n  ", " ", "|", ">", "#", "&a", "*a", "!!int ",
        "!!bool ", "!!float ", "!!set ", "!!binary ", "!!timestamp ", "!x ", "%YAML 1.1\n", "%", "---\n", "...\n", "'",
        '"', "\\", "\\ud800", "language", "cpp", "params", "1e999", "NaN", ".inf", "-0", "0x", "0b", "1:2:3", "1_", "~",
        "null", "true", "yes", "<<", "=", "2026-11-21", "seq", "prev", "|a|", "| --- |", "<!--", "-->", "\u2028",
        "\x85", "\x00", "\x1b", "\ufeff", "\U0001f600",
    ]
)  # fmt: skip
_TEXTS = st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=60).map("".join), st.binary(max_size=200))


def _tensor(raw: bytes, directory: Path) -> object:
    file = directory / "t.safetensors"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    check_tensor(file, "x", "float32", None)
    return file


def _nodes(text: str) -> None:
    node = compose_yaml(text, where="x", max_bytes=DOCUMENT_BYTES, marks_count_characters=True)
    if node is not None:
        value_of(node, where="x")


def _json_with_lines(text: str) -> None:
    parse_json(text, where="x")
    json_lines(text)


_TABLE = "<!-- harness:assignments begin -->\n"
_LOADERS: dict[str, Callable[[str], object]] = {
    "json": _json_with_lines,
    "yaml": lambda text: parse_yaml(text, where="x"),
    "nodes": _nodes,
    "solution.yaml": lambda text: [str(error) for error in read_spec(text, where="x")[2]],
    "params": param_positions,
    "COORDINATION.md": parse,
    "assignments": lambda text: parse(default_text().replace(_TABLE, f"{_TABLE}{text}\n", 1)),
}
_BYTE_LOADERS: dict[str, Callable[[bytes], object]] = {
    "json": lambda raw: load_json(raw, where="x"),
    "yaml": lambda raw: load_yaml(raw, where="x", max_bytes=DOCUMENT_BYTES),
    "ledger": lambda raw: split(raw, "x"),
    "entry": lambda raw: parse_entry(raw, "x"),
    "heads": lambda raw: read_heads(HEADER + raw),
}


@settings(max_examples=200, deadline=None)
@given(text=_TEXTS)
def test_any_text_gives_a_value_or_an_error_of_ours(
    text: str | bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    decoded = text.decode("latin-1") if isinstance(text, bytes) else text
    calls: list[partial[object]] = [
        *(partial(load, decoded) for load in _LOADERS.values()),
        *(partial(load, raw) for load in _BYTE_LOADERS.values()),
        partial(_tensor, raw, tmp_path_factory.getbasetemp()),
    ]
    for call in calls:
        with suppress(HarnessError):  # any other exception fails the test
            call()
