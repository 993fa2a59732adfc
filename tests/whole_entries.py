"""Whole entries of an index, for assertions about their content."""

from __future__ import annotations

from typing import Any

from harness.ledger.index import Index
from harness.model.entry import Entry


def whole_entries(index: Index, problem: str | None = None, **filters: Any) -> list[Entry]:
    """Return the entries that `Index.rows` selects with the same arguments, oldest first."""
    entries_of_rows = [index.entry(row.problem, row.seq) for row in index.rows(problem, **filters)]
    return [entry for entry in entries_of_rows if entry is not None]
