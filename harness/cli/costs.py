"""`harness status --costs`: the usage of a run's agents by worker and by problem, and the cost per gain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from harness.cli.display.output import emit
from harness.ledger.accounts import Account, Spent, total
from harness.ledger.standings import Standing


def cost_rows(accounts: Iterable[Account], tables: Iterable[Standing]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables `workers`, `problems` (with gains and the cost per gain) and `total`.

    Args:
        accounts: the accounts of a run.
        tables: its standings, which count the gains.
    """
    accounts = list(accounts)
    by_worker: dict[str, list[Account]] = defaultdict(list)
    by_problem: dict[str, list[Account]] = defaultdict(list)
    for account in accounts:
        by_worker[account.worker].append(account)
        by_problem[account.problem or "(planning)"].append(account)
    gains = {standing.problem: len(standing.gains) for standing in tables}
    problems = []
    for name, group in sorted(by_problem.items()):
        spent = total(group)
        problems.append(_row("problem", name, spent) | _gain_cells(spent, gains.get(name, 0)))
    spent = total(accounts)
    return {
        "workers": [_row("worker", name, total(group)) for name, group in sorted(by_worker.items())],
        "problems": problems,
        "total": [_row("all", "all", spent) | _gain_cells(spent, sum(gains.get(name, 0) for name in by_problem))],
    }


def print_costs(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """Print the result of `cost_rows` as tables."""
    for heading in ("workers", "problems", "total"):
        emit([_cells(row) for row in rows[heading]], as_json=False, empty=f"{heading}: no session was opened yet")
        if heading != "total":
            emit([], as_json=False, empty="")


def _row(kind: str, name: str, spent: Spent) -> dict[str, Any]:
    return {
        kind: name,
        "usd": round(spent.usd, 4),
        "tokens_in": spent.input_tokens + spent.cache_write_tokens + spent.cache_read_tokens,
        "tokens_out": spent.output_tokens,
        "turns": spent.turns,
        "minutes": round(spent.seconds / 60, 1),
        "evaluations": spent.evaluations,
        "duplicates": spent.duplicates,
    }


def _gain_cells(spent: Spent, gains: int) -> dict[str, float | None]:
    return {"gains": gains, "usd_per_gain": spent.usd / gains if gains else None}


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    shown = {}
    for key, value in row.items():
        head = "USD per gain" if key == "usd_per_gain" else key.replace("_", " ").replace("usd", "USD")
        shown[head] = "-" if value is None else f"{value:.4f}" if key.startswith("usd") else str(value)
    return shown
