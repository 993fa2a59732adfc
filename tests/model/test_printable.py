from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.model.printable import amount_of, count_of, markdown_text, one_line, printable, printable_json

NASTY = "a\x1b[2J\r\nb\u202ec\u2066d\x00e\x7ff\x85g\U000e0041h\ud800"
ESCAPED = r"a\x1b[2J\r\nb\u202ec\u2066d\x00e\x7ff\x85g\U000e0041h\ud800"


def test_characters_that_control_a_terminal_are_escaped() -> None:
    assert printable(NASTY) == ESCAPED
    assert printable("a\tb\r\nc\x1b", keep_newlines=True) == "a\tb\\r\nc\\x1b"
    assert printable("µ 95 % → \u202f1.2 日本 😀\u00a0\ud7fc") == "µ 95 % → \u202f1.2 日本 😀\u00a0\ud7fc"
    assert one_line(" a\x1b \n b ", 20) == "a\\x1b b"


def test_an_error_is_printable_and_begins_one_line() -> None:
    error = HarnessError(f"no file `{NASTY}`", where=f"{NASTY}:1", remedy=f"remove {NASTY}")
    first, second, third, fourth = str(error).split("\n")
    assert first == f"{ESCAPED}:1: no file `a\\x1b[2J\\r"
    assert second.startswith("  b\\u202e")
    assert third == "  remove a\\x1b[2J\\r"
    assert fourth.startswith("b\\u202e")
    assert str(error) == f"{error.where}: {error.args[0].replace(chr(10), chr(10) + '  ')}\n  {error.remedy}"


def test_markdown_opens_no_cell_link_tag_or_code() -> None:
    text = "a|b `c` <img src=x> [d](http://e)\n# f"
    assert markdown_text(text) == "a\\|b \\`c\\` &lt;img src=x> \\[d](http://e)\\n# f"
    assert markdown_text(text, keep_code=True) == "a|b `c` &lt;img src=x> \\[d](http://e)\\n# f"


def test_a_number_comes_with_the_right_form_of_its_noun() -> None:
    assert [count_of(number, "problem") for number in (0, 1, 2)] == ["0 problems", "1 problem", "2 problems"]
    assert [count_of(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]
    assert amount_of(20_000_000, "token") == "20,000,000 tokens"
    assert [amount_of(minutes, "minute") for minutes in (1.0, 0.05)] == ["1 minute", "0.05 minutes"]
    assert [amount_of(usd, "USD") for usd in (1, 2.5)] == ["1 USD", "2.5 USD"]


@given(st.text(st.characters(), max_size=60))
def test_any_text_becomes_printable_once(text: str) -> None:
    shown = printable(text)
    assert not any(ord(character) < 32 or character in "\x7f\u202e\u2066" for character in shown)
    shown.encode()
    assert printable(shown) == shown


@given(st.text(st.characters(), max_size=60))
def test_json_keeps_its_value(text: str) -> None:
    for ascii_only in (True, False):
        shown = printable_json(json.dumps({"a": [text]}, ensure_ascii=ascii_only, indent=1))
        assert json.loads(shown) == {"a": [text]}
        assert printable(shown, keep_newlines=True) == shown
