"""`harness status --costs`: what the run's agents used, by worker and by problem, and what a gain cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harness.cli.display.output import emit

if TYPE_CHECKING:
    from harness.ledger.accounts import Account, Spent
    from harness.ledger.standings import Standing


def cost_rows(accounts: Iterable[Account], tables: Iterable[Standing]) -> dict[str, list[dict[str, Any]]]:
    """What was used, for scripts: `workers`, `problems` (with gains and the cost of each) and `total`."""
    from harness.ledger.accounts import total

    accounts = list(accounts)
    by_worker: dict[str, list[Account]] = defaultdict(list)
    by_problem: dict[str, list[Account]] = defaultdict(list)
    for account in accounts:
        by_worker[account.worker].append(account)
        by_problem[account.problem or "(planning)"].append(account)
    gains = {one.problem: len(one.gains) for one in tables}
    problems = []
    for name, each in sorted(by_problem.items()):
        spent = total(each)
        won = gains.get(name, 0)
        problems.append(_row("problem", name, spent) | {"gains": won, "usd_per_gain": spent.usd / won if won else None})
    whole, won = total(accounts), sum(gains.get(name, 0) for name in by_problem)
    return {
        "workers": [_row("worker", name, total(each)) for name, each in sorted(by_worker.items())],
        "problems": problems,
        "total": [_row("all", "all", whole) | {"gains": won, "usd_per_gain": whole.usd / won if won else None}],
    }


def print_costs(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """The tables for people."""
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


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    shown = {}
    for key, value in row.items():
        head = "USD per gain" if key == "usd_per_gain" else key.replace("_", " ").replace("usd", "USD")
        shown[head] = "-" if value is None else f"{value:.4f}" if key.startswith("usd") else str(value)
    return shown
