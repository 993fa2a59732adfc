"""What agents have used: an account for each time a session is opened, kept on disk after every answer of the model.

An open account is a file in the git common directory, replaced whole by its one writer. When it is closed the planner
records it in ledger/accounts.yaml, once, and drops the file; so nothing spent is forgotten by a kill at any point.
Dropped files are moved aside for some days: a limit is checked against them by processes that have not read the
ledger again since.
"""

from __future__ import annotations

import contextlib
import json
import time
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
from harness.workspace.files import atomic_write

_ASIDE_S = 3 * 24 * 3600.0
"""A dropped account's file is deleted after so long; every worker reads the ledger again at each session's start."""


@dataclass(frozen=True)
class Spent:
    """Sums. `turns` are answers of the model, `seconds` a session's wall-clock time."""

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

    def __add__(self, other: Spent) -> Spent:
        return Spent(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Spent)})


@dataclass(frozen=True)
class Account:
    """What one opening of one session used."""

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
    """null while its session is open, or when it died without a word."""
    spent: Spent = field(default_factory=Spent)

    def record(self) -> dict[str, Any]:
        """As it stands in the ledger: one level deep."""
        values = asdict(self)
        spent = values.pop("spent")
        return {**values, **spent, "usd": round(spent["usd"], 6), "seconds": round(spent["seconds"], 1)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Self:
        """The account that `record` gave.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        spent = Spent(**{each.name: record[each.name] for each in fields(Spent)})
        own = {each.name: record[each.name] for each in fields(cls) if each.name != "spent"}
        return cls(**own, spent=spent)


def now() -> str:
    """The present time as accounts write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def keep(workspace: Workspace, account: Account) -> None:
    """Put an account as it stands now on disk. Only its session's worker calls this."""
    atomic_write(_directory(workspace) / f"{account.id}.json", json.dumps(account.record()))


def kept(workspace: Workspace) -> list[Account]:
    """The accounts that the planner has not recorded yet, oldest first. A file that is no account is left alone."""
    accounts = _accounts_in(_directory(workspace).glob("*.json"))
    return sorted(accounts, key=lambda account: (account.began, account.id))


def close_left_open(workspace: Workspace, worker: str) -> None:
    """Close what a worker that was killed left open. Called by who holds the worker's lock."""
    for account in kept(workspace):
        if account.worker == worker and account.ended is None:
            keep(workspace, replace(account, ended=now()))


def drop(workspace: Workspace, account: Account) -> None:
    """Move the file of an account aside that is in the ledger now."""
    aside = _directory_aside(workspace)
    name = f"{account.id}.json"
    with contextlib.suppress(FileNotFoundError):
        (_directory(workspace) / name).replace(aside / name)
    oldest = time.time() - _ASIDE_S
    for file in aside.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime < oldest:
                file.unlink()


def dropped(workspace: Workspace, known: Collection[str]) -> list[Account]:
    """Return the accounts that were dropped in the last days, except those whose ids are `known`."""
    files = [file for file in _directory_aside(workspace).glob("*.json") if file.stem not in known]
    return list(_accounts_in(files))


def recorded(workspace: Workspace, repo: Repo, branch: str) -> list[Account]:
    """The accounts in the ledger, in order."""
    return [Account.of_record(record) for record in read_records(workspace, repo, ACCOUNTS, branch=branch)]


def all_accounts(workspace: Workspace, repo: Repo, branch: str) -> list[Account]:
    """Every account, recorded or still kept; each once."""
    found = {account.id: account for account in kept(workspace)}  # first: one may be recorded and dropped meanwhile
    for account in recorded(workspace, repo, branch):
        found[account.id] = account
    return sorted(found.values(), key=lambda account: (account.began, account.id))


def total(accounts: Iterable[Account]) -> Spent:
    """What they used together."""
    whole = Spent()
    for account in accounts:
        whole += account.spent
    return whole


def _accounts_in(files: Iterable[Path]) -> Iterator[Account]:
    for file in files:
        with contextlib.suppress(OSError, FormatError, KeyError, TypeError, ValueError):
            yield Account.of_record(load_json_file(file))


def _directory(workspace: Workspace) -> Path:
    directory = workspace.state / "accounts"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _directory_aside(workspace: Workspace) -> Path:
    directory = workspace.state / "accounts-recorded"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
