"""COORDINATION.md: round trip, unchanged text of people, and errors of tables with their line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import FormatError
from harness.ledger.coordination import NO_WORKER, default_text, parse, render
from harness.model.assignment import Assignment
from harness.model.paths import is_name
from harness.model.timed_checks import CHECKS_TEXT, ORDINARY_ROUNDS, checked_calls

ROW = "| w01 | starter/rmsnorm_h4096 | active | try wider vectors |"
TABLE_LINE = next(n for n, line in enumerate(default_text().splitlines(), 1) if line == "| --- | --- | --- | --- |") + 1


def with_rows(*rows: str) -> str:
    marker = "<!-- harness:assignments end -->"
    return default_text().replace(marker, "\n".join([*rows, marker]), 1)


names = st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True).filter(is_name)
lines = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Cf", "Zl", "Zp"]), max_size=60).map(
    lambda t: " ".join(t.split())
)


@st.composite
def tables(draw: st.DrawFn) -> list[Assignment]:
    rows = []
    for number in range(draw(st.integers(0, 6))):
        problem = f"{draw(names)}/{draw(names)}{number}"
        state = draw(st.sampled_from(["active", "pinned", "paused"]))
        worker = NO_WORKER if state == "paused" else f"w{number:02d}"
        instruction = draw(lines.filter(lambda text: "<!--" not in text and "-->" not in text))
        rows.append(Assignment(worker=worker, problem=problem, state=state, wanted=instruction))  # type: ignore[arg-type]
    return rows


def rendered(text: str, rows: list[Assignment]) -> str:
    return render(text, assignments=rows, standings_markdown="| a |", notes={"s/p": "slow\nstill"}, updated_at="today")


@given(tables())
def test_what_is_rendered_parses_back(rows: list[Assignment]) -> None:
    text = rendered(default_text(), rows)
    assert parse(text) == tuple(rows)
    assert rendered(text, rows) == text


@given(tables(), st.text(max_size=80), st.text(max_size=80))
def test_every_byte_outside_the_markers_survives(rows: list[Assignment], before: str, after: str) -> None:
    text = before.replace("<!--", "") + default_text() + after.replace("<!--", "")
    inside = re.compile(r"(<!-- harness:(\w+) begin -->).*?(<!-- harness:\2 end -->)", re.DOTALL)
    assert inside.sub(r"\1\3", rendered(text, rows)) == inside.sub(r"\1\3", text)


def test_an_agents_note_cannot_break_the_file() -> None:
    forged_note = "x <!-- harness:notes end --> | y\n| w09 | a/b | pinned | z |"
    row = Assignment(worker="w01", problem="a/b", wanted=forged_note)
    text = render(
        default_text(), assignments=[row], standings_markdown=forged_note, notes={"a/b": forged_note}, updated_at="now"
    )
    (back,) = parse(text)
    assert (back.worker, back.problem) == ("w01", "a/b")


def test_pinned_and_paused_rows_are_returned() -> None:
    text = with_rows("| w02 | a/b | pinned | |", "| - | c/d | paused | broken reference |")
    assert [(row.problem, row.state) for row in parse(text)] == [("a/b", "pinned"), ("c/d", "paused")]


def test_a_file_with_windows_line_ends_keeps_them() -> None:
    text = rendered(default_text().replace("\n", "\r\n"), [Assignment(worker="w01", problem="a/b")])
    assert "\n" not in text.replace("\r\n", "")
    assert parse(text)[0].problem == "a/b"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (
            with_rows("| w01 | a/b | active |"),
            TABLE_LINE,
            "a row of 3 cells; expected 4: worker, problem, state, wanted",
        ),
        (with_rows(ROW, "w02 works on a/b"), TABLE_LINE + 1, "`w02 works on a/b` is not a row of the table"),
        (
            with_rows("| w01 | a/b | busy | |"),
            TABLE_LINE,
            "the state is `busy`; expected one of active, pinned, paused",
        ),
        (with_rows("| w 1 | a/b | active | |"), TABLE_LINE, "`w 1` is not a worker's name"),
        (with_rows("| - | a/b | active | |"), TABLE_LINE, "`-` is not a worker's name"),
        (
            with_rows("| w01 | rmsnorm | active | |"),
            TABLE_LINE,
            "`rmsnorm` is not a problem's key; expected suite/name",
        ),
        (with_rows("| w01 | ../x/y | active | |"), TABLE_LINE, "`../x/y` is not a problem's key"),
        (with_rows(ROW, ROW), TABLE_LINE + 1, f"are already in line {TABLE_LINE}"),
        (with_rows(ROW, "| w01 | a/b | active | |"), TABLE_LINE + 1, "w01 already works on starter/rmsnorm_h4096"),
        (
            default_text().replace("| worker | problem | state | wanted |", "| who | what |"),
            TABLE_LINE - 2,
            "the table's head is `who | what`; expected `worker | problem | state | wanted`",
        ),
        (
            default_text().replace("| --- | --- | --- | --- |", ROW),
            TABLE_LINE - 1,
            "expected the line of dashes below the table's head",
        ),
        (
            default_text().replace("<!-- harness:notes end -->", ""),
            None,
            "the marker <!-- harness:notes end --> is missing",
        ),
        (
            default_text() + "<!-- harness:notes end -->\n",
            default_text().count("\n") + 1,
            "<!-- harness:notes end --> occurs a second time",
        ),
        (
            default_text()
            .replace("harness:standings begin", "X")
            .replace("harness:standings end", "harness:standings begin")
            .replace("X", "harness:standings end"),
            next(n for n, line in enumerate(default_text().splitlines(), 1) if "standings begin" in line),
            "section standings ends before it begins",
        ),
    ],
)
def test_a_broken_file_names_its_line(text: str, line: int | None, expected: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(text)
    assert expected in caught.value.message
    assert caught.value.where == (f"COORDINATION.md:{line}" if line else "COORDINATION.md")


def test_the_numbers_of_checked_calls_are_those_of_the_judge() -> None:
    committed = (Path(__file__).parents[2] / "COORDINATION.md").read_text()
    for text in (default_text(), committed):
        assert CHECKS_TEXT in text
        assert "every timed output" not in text
    sentence = " ".join(CHECKS_TEXT.split())
    assert f"{checked_calls(1)} calls for a problem with one workload, down to {checked_calls(1000)} with" in sentence
    assert f"{ORDINARY_ROUNDS} calls with ordinary inputs" in sentence
