"""Accounts: the tokens, cost and time that agents used, one account for each time a session is opened.

An open account is a file in the git common directory. Its one writer replaces it atomically after every answer of the
model. After its end the planner records it in ledger/accounts.yaml, once, and sets the file aside, so that no cost is
lost by a kill at any point. Files that were set aside stay for some days: processes that have not read the ledger again
since then check limits against them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.git.repo import Repo
from harness.ledger.ledger import read_records
from harness.model.paths import ACCOUNTS
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, remove_older

_ASIDE = "accounts-recorded"
_ASIDE_S = 3 * 24 * 3600.0
"""The file of a recorded account is deleted after this time; every worker reads the ledger at each session's start."""


@dataclass(frozen=True)
class Spent:
    """Sums of costs and counts. `turns` are answers of the model, `seconds` a session's wall-clock time."""

    usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    turns: int = 0
    evaluations: int = 0
    duplicates: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """All tokens, cached or not."""
        return self.input_tokens + self.output_tokens + self.cache_write_tokens + self.cache_read_tokens

    def __add__(self, addend: Spent) -> Spent:
        return Spent(**{item.name: getattr(self, item.name) + getattr(addend, item.name) for item in fields(Spent)})


@dataclass(frozen=True)
class Account:
    """The costs of one opening of one session."""

    id: str
    run: str
    worker: str
    """`planner` for the planner's own sessions."""
    problem: str
    session: str
    agent: str
    began: str
    model: str = "none"
    ended: str | None = None
    """null while the session is open, or after its worker was killed."""
    spent: Spent = field(default_factory=Spent)

    def record(self) -> dict[str, Any]:
        """Return the account as a record of the ledger, one level deep."""
        values = asdict(self)
        spent = values.pop("spent")
        return {**values, **spent, "usd": round(spent["usd"], 6), "seconds": round(spent["seconds"], 1)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Self:
        """Return the account of a record.

        Raises:
            KeyError, TypeError, ValueError: the record is not an account.
        """
        spent = Spent(**{item.name: record[item.name] for item in fields(Spent)})
        own = {item.name: record[item.name] for item in fields(cls) if item.name != "spent"}
        return cls(**own, spent=spent)


def present_time() -> str:
    """Return the present time in the format of accounts: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_account(workspace: Workspace, account: Account) -> None:
    """Write the present state of an account to disk. Only its session's worker calls this."""
    atomic_write(_directory(workspace) / f"{account.id}.json", json.dumps(account.record()))


def unrecorded_accounts(workspace: Workspace) -> list[Account]:
    """Return the accounts that the planner has not recorded yet, oldest first; other files are ignored."""
    accounts = _accounts_in(_directory(workspace).glob("*.json"))
    return sorted(accounts, key=lambda account: (account.began, account.id))


def close_left_open(workspace: Workspace, worker: str) -> None:
    """Close the accounts that a killed worker left open. The caller holds the worker's lock."""
    for account in unrecorded_accounts(workspace):
        if account.worker == worker and account.ended is None:
            write_account(workspace, replace(account, ended=present_time()))


def set_aside(workspace: Workspace, account: Account) -> None:
    """Move the file of an account that the ledger holds to the files that are set aside."""
    aside = _directory(workspace, _ASIDE)
    name = f"{account.id}.json"
    with contextlib.suppress(FileNotFoundError):
        (_directory(workspace) / name).replace(aside / name)
    remove_older(aside.glob("*.json"), _ASIDE_S)


def accounts_set_aside(workspace: Workspace, recorded_ids: Collection[str]) -> list[Account]:
    """Return the accounts that were recorded and set aside in the last days.

    Args:
        recorded_ids: ids of accounts to omit.
    """
    files = [file for file in _directory(workspace, _ASIDE).glob("*.json") if file.stem not in recorded_ids]
    return list(_accounts_in(files))


def recorded_accounts(workspace: Workspace, repo: Repo, branch: str) -> list[Account]:
    """Return the accounts in the ledger, in order.

    Args:
        branch: the coordination branch.
    """
    return [Account.of_record(record) for record in read_records(workspace, repo, ACCOUNTS, branch=branch)]


def all_accounts(workspace: Workspace, repo: Repo, branch: str) -> list[Account]:
    """Return every account, recorded or not, each once, oldest first.

    Args:
        branch: the coordination branch.
    """
    # Read before the ledger: an account may be recorded meanwhile.
    unrecorded = unrecorded_accounts(workspace)
    accounts = {account.id: account for account in [*unrecorded, *recorded_accounts(workspace, repo, branch)]}
    return sorted(accounts.values(), key=lambda account: (account.began, account.id))


def total(accounts: Iterable[Account]) -> Spent:
    """Return the sum of the costs of accounts."""
    return sum((account.spent for account in accounts), Spent())


def _accounts_in(files: Iterable[Path]) -> Iterator[Account]:
    for file in files:
        with contextlib.suppress(OSError, FormatError, KeyError, TypeError, ValueError):
            yield Account.of_record(load_json_file(file))


def _directory(workspace: Workspace, name: str = "accounts") -> Path:
    directory = workspace.state / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory
