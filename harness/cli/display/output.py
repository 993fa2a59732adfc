"""The output of commands: tables for people, JSON for scripts.

All commands print through these functions, which escape control characters: the output contains text of agents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from harness.model.printable import printable, printable_json

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def echo(text: str = "", *, err: bool = False, bold: bool | None = None, fg: str | None = None) -> None:
    """Print lines of text with control characters escaped.

    Args:
        text: the lines.
    """
    escaped = printable(text, keep_newlines=True)
    click.echo(click.style(escaped, bold=bold, fg=fg) if bold or fg else escaped, err=err)


def echo_json(text: str) -> None:
    """Print a JSON text with control characters escaped in JSON's syntax."""
    click.echo(printable_json(text))


def echo_document(document: object, *, indent: int | None = 2) -> None:
    """Print a document as JSON.

    Args:
        document: what `json.dumps` accepts; other values in it become texts.
        indent: spaces of a level; None for one line.
    """
    echo_json(json.dumps(document, indent=indent, default=str))


def echo_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines with control characters escaped.

    Args:
        lines: without newlines at their ends.
    """
    for line in lines:
        echo(line, err=err)


def emit(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
    empty: str = "nothing to show",
) -> None:
    """Print rows as JSON or as a table.

    Args:
        rows: key -> value.
        as_json: print the rows as JSON, without regard to `columns`.
        columns: heading -> function that returns the cell of a row; None for the rows' own keys.
        empty: the line for an empty table.
    """
    if as_json:
        echo_document(list(rows))
        return
    if not rows:
        echo(empty)
        return
    from tabulate import tabulate

    heads: list[str] = list(columns or rows[0])
    cells = [[printable(columns[head](row) if columns else str(row[head])) for head in heads] for row in rows]
    click.echo(tabulate(cells, headers=heads, tablefmt="simple", disable_numparse=True))
