"""How commands print: a table for people, `--json` for scripts.

Every command prints through here: what it prints holds text of agents, which is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from harness.model.printable import printable, printable_json

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def echo(text: str = "", *, err: bool = False, bold: bool | None = None, fg: str | None = None) -> None:
    """Print lines of text; what could steer a terminal is escaped."""
    shown = printable(text, keep_newlines=True)
    click.echo(click.style(shown, bold=bold, fg=fg) if bold or fg else shown, err=err)


def echo_json(text: str, *, nl: bool = True) -> None:
    """Print a JSON text; the same characters are escaped as JSON escapes them."""
    click.echo(printable_json(text), nl=nl)


def emit(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
    empty: str = "nothing to show",
) -> None:
    """Print rows as JSON, or as a table of `columns` (heading -> cell of a row; default: the rows' own keys)."""
    if as_json:
        echo_json(json.dumps(list(rows), indent=2, default=str))
        return
    if not rows:
        echo(empty)
        return
    from tabulate import tabulate

    heads: list[str] = list(columns or rows[0])
    cells = [[printable(columns[head](row) if columns else str(row[head])) for head in heads] for row in rows]
    click.echo(tabulate(cells, headers=heads, tablefmt="simple", disable_numparse=True))
