"""Tables that fit the screen: on a narrow screen, columns are shortened or omitted, and texts are truncated last."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.model.printable import printable, shortened

Row = TypeVar("Row")

_GAP = 2
"""Characters between two columns."""
_MIN_CELL_WIDTH = 6
"""No cell is truncated to fewer characters."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table."""

    heading: str
    cell: Callable[[Row], str]
    shorter_cells: tuple[tuple[int, Callable[[Row], str] | None], ...] = ()
    """(rank, shorter cell), the highest rank first. A table that is too wide takes the step of the highest rank of all
    its columns, then the next one. None omits the column."""
    narrow_heading: str | None = None
    """Replaces the heading once a shorter cell is shown."""
    min_width: int | None = None
    """The column may be truncated to this width, in characters, before any column takes a shorter cell."""


def screen_width() -> int | None:
    """Return the width for tables: COLUMNS if it is set, else the terminal's; None if stdout is not a terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int | None) -> list[str]:
    """Return the lines of a table, its heading first; none is longer than `width` characters if possible.

    Args:
        rows: one line each.
        columns: from left to right.
        width: in characters; None for no limit.
    """
    shown = [(column, column.heading, [printable(column.cell(row)) for row in rows]) for column in columns]
    steps = sorted({rank for column in columns for rank, _ in column.shorter_cells}, reverse=True)
    for rank in steps:
        if width is None or _min_width(shown) <= width:
            break
        shown = [narrower for part in shown if (narrower := _shortened(rows, part, rank)) is not None]
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


def _shortened(rows: Sequence[Row], part: _Part[Row], rank: int) -> _Part[Row] | None:
    """Return a column after the step of this rank; None if the step omits it."""
    column, heading, _ = part
    for step, shorter in column.shorter_cells:
        if step == rank:
            if shorter is None:
                return None
            return column, column.narrow_heading or heading, [printable(shorter(row)) for row in rows]
    return part


def _natural(part: _Part[Row]) -> int:
    _, heading, cells = part
    return max([len(heading), *map(len, cells)])


def _min_width(shown: Sequence[_Part[Row]]) -> int:
    widths = [min(_natural(part), part[0].min_width or _natural(part)) for part in shown]
    return sum(widths) + _GAP * (len(shown) - 1)


def _cut(shown: list[_Part[Row]], width: int) -> list[_Part[Row]]:
    """Truncate the columns with a minimum width, then all columns; always the widest one first."""
    widths = [_natural(part) for part in shown]
    limits = [part[0].min_width or natural for part, natural in zip(shown, widths, strict=True)]
    for floor in (limits, [_MIN_CELL_WIDTH] * len(shown)):
        while sum(widths) + _GAP * (len(shown) - 1) > width:
            wider = [number for number, natural in enumerate(widths) if natural > floor[number]]
            if not wider:
                break
            widths[max(wider, key=lambda number: widths[number])] -= 1
    return [
        (column, shortened(heading, limit), [shortened(cell, limit) for cell in cells])
        for (column, heading, cells), limit in zip(shown, widths, strict=True)
    ]
