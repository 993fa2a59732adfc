"""The agents' spend and their limits, from the accounts of their sessions, which are read incrementally."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from harness.errors import LedgerError
from harness.formats.ledger_documents import parse, split
from harness.git.repo import Repo
from harness.ledger.accounts import Spent, accounts_set_aside, unrecorded_accounts
from harness.model.config import Config
from harness.model.paths import ACCOUNTS
from harness.model.process_status import DaemonStatus, StartStatus
from harness.report.page import Json
from harness.workspace.directories import Workspace


class RecordedAccounts:
    """The accounts of ledger/accounts.yaml; only appended records are parsed."""

    def __init__(self, workspace: Workspace, repo: Repo, branch: str) -> None:
        self._workspace, self._repo, self._branch = workspace, repo, branch
        self._content = b""
        self._recorded: dict[str, tuple[str, str, Spent]] = {}
        """Account id -> run, worker and usage."""

    def spent(self, run: str) -> tuple[Spent, dict[str, Spent]] | None:
        """Return the usage of a run in total and by worker; None without accounts."""
        self._read()
        # The planner moves an account from the kept ones to the dropped ones, so these are read second.
        accounts = unrecorded_accounts(self._workspace)
        accounts += accounts_set_aside(self._workspace, self._recorded.keys())
        by_id = {account.id: (account.run, account.worker, account.spent) for account in accounts} | self._recorded
        of_run = [(worker, spent) for account_run, worker, spent in by_id.values() if account_run == run]
        by_worker: dict[str, Spent] = {}
        for worker, spent in of_run:
            by_worker[worker] = by_worker.get(worker, Spent()) + spent
        return (sum(by_worker.values(), Spent()), by_worker) if of_run else None

    def _read(self) -> None:
        content = self._repo.read(self._repo.tip(self._branch), ACCOUNTS) or b""
        if content == self._content:
            return
        start = len(self._content)
        if not content.startswith(self._content):  # a person has rewritten the file
            start, self._recorded = 0, {}
        for document in split(content, ACCOUNTS, start=start):
            try:
                record = parse(document.raw, ACCOUNTS)
            except LedgerError:  # `harness audit` reports it
                continue
            account = str(record.get("run")), str(record.get("worker")), _spent(record)
            self._recorded[str(record.get("id"))] = account
        self._content = content


def _spent(record: dict[str, Any]) -> Spent:
    numbers: dict[str, Any] = {
        field.name: value for field in fields(Spent) if isinstance(value := record.get(field.name), int | float)
    }
    return Spent(**numbers)


def spending(
    config: Config, start: StartStatus | None, daemon: DaemonStatus | None, spent: tuple[Spent, dict[str, Spent]] | None
) -> Json:
    """Return the usage and the limits as JSON.

    Args:
        start: limits of the last `harness start`; None if its run was another one.
        daemon: counts the evaluations of that invocation.
        spent: usage of the run in total and by worker; None if no agent used a model.
    """
    total, by_worker = spent or (Spent(), {})
    overall = config.agent.overall
    rows: list[Json | None] = [
        _row("dollars", total.usd, overall.usd, "of the run", kind="usd"),
        _row("tokens", total.tokens, overall.tokens, "of the run"),
        _row("answers of the model", total.turns, overall.turns, "of the run"),
    ]
    if start is not None:
        used = max(0.0, total.usd - start.usd_before)
        done = daemon.evaluations_done if daemon is not None else None
        rows += [
            _row("dollars", used, start.max_usd, "of this start", kind="usd") if start.max_usd else None,
            _row("evaluations", done, start.max_evaluations, "of this start"),
            _row("minutes", None, start.max_minutes, "of this start", kind="minutes"),
        ]
    shown = [row for row in rows if row is not None and (row["limit"] is not None or row["used"])]
    return {
        "rows": shown,
        "usd": None if spent is None else round(total.usd, 4),
        "worker_limit_usd": config.agent.per_worker.usd,
        "workers": {
            name: {"usd": round(worker_spent.usd, 4), "tokens": worker_spent.tokens}
            for name, worker_spent in by_worker.items()
        },
    }


def _row(name: str, used: float | None, limit: float | None, scope: str, *, kind: str = "count") -> Json:
    return {
        "name": name,
        "used": None if used is None else round(used, 4),
        "limit": limit,
        "scope": scope,
        "kind": kind,
    }
