"""Tables that fit the screen: texts are cut, columns are shortened or dropped by rank. A sparkline shows a series."""

from __future__ import annotations

import pytest

from harness.cli.display.standings import sparkline
from harness.cli.display.tables import Column, screen_width, table_lines

ROWS = [{"name": "starter/rmsnorm_h4096", "time": "541 us", "note": "w" * 60}, {"name": "x", "time": "-", "note": ""}]
COLUMNS: tuple[Column[dict[str, str]], ...] = (
    Column("name", lambda row: row["name"], min_width=12),
    Column("time", lambda row: row["time"], ((2, lambda row: row["time"][:3]), (1, None)), "t"),
    Column("note", lambda row: row["note"], min_width=10),
)


def test_without_a_screen_nothing_is_cut() -> None:
    lines = table_lines(ROWS, COLUMNS, None)
    assert lines[2] == f"starter/rmsnorm_h4096  541 us  {'w' * 60}"
    assert table_lines(ROWS, COLUMNS, 200) == lines


def test_no_line_is_wider_than_the_screen() -> None:
    for width in range(14, 100):
        lines = table_lines(ROWS, COLUMNS, width)
        assert max(map(len, lines)) <= width
        assert lines[0].startswith("name"), "the first column stays"


def test_texts_are_cut_and_the_highest_rank_is_shortened_first() -> None:
    assert table_lines(ROWS, COLUMNS, 32)[2] == "starter/rms…  541 us  wwwwwwwww…"
    assert table_lines(ROWS, COLUMNS, 30)[2] == "starter/rms…  541  wwwwwwwwww…"
    assert table_lines(ROWS, COLUMNS, 24)[0].split() == ["name", "note"]


def test_what_could_steer_a_terminal_is_escaped() -> None:
    (line,) = table_lines([{"name": "a\x1b[2J\nb"}], (Column("name", lambda row: row["name"]),), 80)[2:]
    assert line == r"a\x1b[2J\nb"


def test_the_width_is_that_of_columns_and_unlimited_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "71")
    assert screen_width() == 71
    monkeypatch.delenv("COLUMNS")
    assert screen_width() is None, "pytest captures stdout"


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ([], 8, ""),
        ([1.2], 8, "▁"),
        ([1.0, 1.0, 1.0], 8, "▁▁▁"),
        ([1.0, 1.5, 2.0], 8, "▁▅█"),
        ([1.0, 3.0, 1.0, 1.0, 1.0, 2.0], 3, "█▁▅"),
    ],
)
def test_a_sparkline_has_the_highest_of_each_share(values: list[float], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown
