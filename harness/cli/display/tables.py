"""Tables that fit the screen: columns give way on a narrow one, and texts are cut last."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.model.printable import printable
from harness.model.truncate import shortened

Row = TypeVar("Row")

_GAP = 2
"""Characters between two columns."""
_LEAST = 6
"""No cell is cut to fewer characters."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table."""

    heading: str
    cell: Callable[[Row], str]
    gives_way: tuple[tuple[int, Callable[[Row], str] | None], ...] = ()
    """(rank, shorter cell), the highest rank first: where a table is too wide, the step of the highest rank of all its
    columns is taken, then the next. None leaves the column out."""
    narrow_heading: str | None = None
    """In place of the heading, once a shorter cell is shown."""
    least: int | None = None
    """The column may be cut to this width, in characters, before any column gives way."""


def screen_width() -> int | None:
    """Return the width for tables: COLUMNS where it is set, else the terminal's; None where stdout is no terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int | None) -> list[str]:
    """Return the lines of a table, its heading first; none is longer than `width` characters if possible.

    Args:
        rows: one line each.
        columns: from left to right.
        width: in characters; None for as much as the table needs.
    """
    shown = [(column, column.heading, [printable(column.cell(row)) for row in rows]) for column in columns]
    steps = sorted({rank for column in columns for rank, _ in column.gives_way}, reverse=True)
    for rank in steps:
        if width is None or _least_width(shown) <= width:
            break
        shown = [kept for part in shown if (kept := _given_way(rows, part, rank)) is not None]
    if width is not None:
        shown = _cut(shown, width)
    widths = [_natural(part) for part in shown]
    lines = [
        [heading for _, heading, _ in shown],
        ["-" * width for width in widths],
        *zip(*(cells for _, _, cells in shown), strict=True),
    ]
    return [_line(cells, widths) for cells in lines]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


_Part = tuple[Column[Row], str, list[str]]


def _given_way(rows: Sequence[Row], part: _Part[Row], rank: int) -> _Part[Row] | None:
    """Return a column after the step of this rank; None when it is left out."""
    column, heading, _ = part
    for step, shorter in column.gives_way:
        if step == rank:
            if shorter is None:
                return None
            return column, column.narrow_heading or heading, [printable(shorter(row)) for row in rows]
    return part


def _natural(part: _Part[Row]) -> int:
    _, heading, cells = part
    return max([len(heading), *map(len, cells)])


def _least_width(shown: Sequence[_Part[Row]]) -> int:
    widths = [min(_natural(part), part[0].least or _natural(part)) for part in shown]
    return sum(widths) + _GAP * (len(shown) - 1)


def _cut(shown: list[_Part[Row]], width: int) -> list[_Part[Row]]:
    """Cut the columns that may be cut, and all of them where that is not enough; always the widest."""
    widths = [_natural(part) for part in shown]
    limits = [part[0].least or natural for part, natural in zip(shown, widths, strict=True)]
    for floor in (limits, [_LEAST] * len(shown)):
        while sum(widths) + _GAP * (len(shown) - 1) > width:
            wider = [number for number, natural in enumerate(widths) if natural > floor[number]]
            if not wider:
                break
            widths[max(wider, key=lambda number: widths[number])] -= 1
    return [
        (column, shortened(heading, most), [shortened(cell, most) for cell in cells])
        for (column, heading, cells), most in zip(shown, widths, strict=True)
    ]
