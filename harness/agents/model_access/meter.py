"""The account of an open session: several threads add to it, and each change is written to disk."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from harness.agents.model_access.prices import price_of, usd
from harness.ledger.accounts import Account, Spent, present_time, write_account
from harness.model.config import Price
from harness.workspace.directories import Workspace


class Meter:
    """Adds usage to the account of one session. Thread-safe.

    Args:
        workspace: stores the account.
        account: the account at the start of the session.
        prices: model name pattern -> price, from harness.yaml.
    """

    def __init__(self, workspace: Workspace, account: Account, prices: dict[str, Price]) -> None:
        self._workspace, self._account, self._prices = workspace, account, prices
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self.last_activity = time.monotonic()
        """Monotonic time of the last data from the model API."""
        with self._lock:
            write_account(workspace, account)

    @property
    def account(self) -> Account:
        """Return the present account."""
        return self._account

    @property
    def spent(self) -> Spent:
        """Return the usage since the session was opened."""
        return replace(self._account.spent, seconds=time.monotonic() - self._since)

    def add_answer(self, model: str, usage: Spent) -> None:
        """Add an answer of the model at its price.

        Args:
            model: name of the model, from the answer.
            usage: the tokens that the answer reports.
        """
        cost_usd = usd(usage, price_of(model, self._prices))
        self.add(replace(usage, usd=cost_usd), model=model)

    def add(self, usage: Spent, *, model: str | None = None, session: str | None = None) -> None:
        """Add usage and write the account to disk.

        Args:
            usage: amounts to add.
            model: replaces the model of the account; None leaves it.
            session: replaces the session id of the account; None leaves it.
        """
        with self._lock:
            spent = replace(self._account.spent + usage, seconds=time.monotonic() - self._since)
            changes = {name: value for name, value in (("model", model), ("session", session)) if value}
            self._account = replace(self._account, spent=spent, **changes)
            write_account(self._workspace, self._account)

    def close(self) -> None:
        """Record the end of the session."""
        with self._lock:
            spent = replace(self._account.spent, seconds=time.monotonic() - self._since)
            self._account = replace(self._account, spent=spent, ended=present_time())
            write_account(self._workspace, self._account)

    def record_activity(self) -> None:
        """Record that the model API has sent data."""
        self.last_activity = time.monotonic()
