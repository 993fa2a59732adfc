"""One session's account while it is open: added to from several threads, on disk after every change."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from harness.agents.model_access.prices import price_of, usd
from harness.ledger.accounts import Account, Spent, present_time, write_account
from harness.model.config import Price
from harness.workspace.directories import Workspace


class Meter:
    """Keeps an account.

    Args:
        workspace: where it is kept.
        account: as it is opened.
        prices: a run's own prices.
    """

    def __init__(self, workspace: Workspace, account: Account, prices: dict[str, Price]) -> None:
        self._workspace, self._account, self._prices = workspace, account, prices
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self.heard_at = time.monotonic()
        """When the model's side was heard of last, on the monotonic clock."""
        with self._lock:
            write_account(workspace, account)

    @property
    def account(self) -> Account:
        """As it stands."""
        return self._account

    @property
    def spent(self) -> Spent:
        """What the session used since it was opened."""
        return replace(self._account.spent, seconds=time.monotonic() - self._since)

    def add_answer(self, model: str, used: Spent) -> None:
        """An answer of the model, with the tokens that it says it took."""
        cost = usd(used, price_of(model, self._prices))
        self.add(replace(used, usd=cost), model=model)

    def add(self, used: Spent, *, model: str | None = None, session: str | None = None) -> None:
        """Add what was used, and on disk with it."""
        with self._lock:
            spent = replace(self._account.spent + used, seconds=time.monotonic() - self._since)
            changes = {name: value for name, value in (("model", model), ("session", session)) if value}
            self._account = replace(self._account, spent=spent, **changes)
            write_account(self._workspace, self._account)

    def close(self) -> None:
        """The session is over."""
        with self._lock:
            spent = replace(self._account.spent, seconds=time.monotonic() - self._since)
            self._account = replace(self._account, spent=spent, ended=present_time())
            write_account(self._workspace, self._account)

    def heard(self) -> None:
        """The model's side has sent something."""
        self.heard_at = time.monotonic()
