"""How commands print: a table for people, `--json` for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def emit(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
    empty: str = "nothing to show",
) -> None:
    """Print rows as JSON, or as a table of `columns` (heading -> cell of a row; default: the rows' own keys)."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=2, default=str))
        return
    if not rows:
        click.echo(empty)
        return
    from tabulate import tabulate

    heads: list[str] = list(columns or rows[0])
    cells = [[columns[head](row) if columns else str(row[head]) for head in heads] for row in rows]
    click.echo(tabulate(cells, headers=heads, tablefmt="simple", disable_numparse=True))
