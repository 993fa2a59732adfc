"""The account of an open session: several threads add to it, and each change is written to disk."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace

from harness.agents.model_access.prices import price_of, usd
from harness.ledger.accounts import Account, Spent, present_time, write_account
from harness.model.config import Config
from harness.workspace.directories import Workspace


class Meter:
    """Opens the account of one session, and adds usage to it. Thread-safe.

    Args:
        problem: key of the session's problem; empty for the planner.
        session: id of a session that is resumed; empty for another one.
    """

    def __init__(
        self, workspace: Workspace, config: Config, worker: str, agent: str, problem: str = "", session: str = ""
    ) -> None:
        self.workspace, self.prices = workspace, config.agent.prices
        self.account = Account(uuid.uuid4().hex, config.run, worker, problem, session, agent, began=present_time())
        """The present account."""
        self._since = self.last_activity = time.monotonic()
        """`last_activity`: monotonic time of the last sign of life: data from the model API, or the use of a tool."""
        self._lock = threading.Lock()
        write_account(workspace, self.account)

    @property
    def spent(self) -> Spent:
        """Return the usage since the session was opened."""
        return replace(self.account.spent, seconds=time.monotonic() - self._since)

    def add_answer(self, model: str, usage: Spent) -> None:
        """Add an answer of the model at its price.

        Args:
            usage: the tokens that the answer reports.
        """
        cost = usd(usage, price_of(model, self.prices))
        self.add(replace(usage, usd=cost), model=model or self.account.model)

    def add(self, usage: Spent, **changes: str) -> None:
        """Add usage and write the account to disk.

        Args:
            changes: field of the account -> its new value.
        """
        with self._lock:
            spent = replace(self.account.spent + usage, seconds=time.monotonic() - self._since)
            self.account = replace(self.account, spent=spent, **changes)
            write_account(self.workspace, self.account)

    def close(self) -> None:
        """Record the end of the session."""
        self.add(Spent(), ended=present_time())

    def record_activity(self) -> None:
        """Record a sign of life of the session."""
        self.last_activity = time.monotonic()
