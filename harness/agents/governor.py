"""What ends a session that the agent would not end.

Limits of the session, the worker and the run, and signs of a session that has lost its way. Everything is counted by
the harness itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.agents.agent_tools import Desk
from harness.agents.model_access.meter import Meter
from harness.agents.session import Event, ToolUse
from harness.git.repo import Repo
from harness.ledger.accounts import Account, Spent, accounts_set_aside, recorded_accounts, total, unrecorded_accounts
from harness.model.config import Budget, Config
from harness.workspace.directories import Workspace

_LOOK_EVERY_S = 2.0
_HACKS = 2
"""Verdicts of REWARD_HACK that end a session: COORDINATION.md says so."""


class Purse:
    """What a run and its workers have used so far: the ledger's accounts, read once, and the kept ones, again.

    Args:
        workspace: whose accounts.
        repo: its repository; used here and in `reread` only.
        config: names run and branch.
    """

    def __init__(self, workspace: Workspace, repo: Repo, config: Config) -> None:
        self._workspace, self._run = workspace, config.run
        self._lock = threading.Lock()
        self._seen: dict[str, Account] = {}
        self._looked_at = -_LOOK_EVERY_S
        self.reread(repo, config)

    def reread(self, repo: Repo, config: Config) -> None:
        """Read the ledger's accounts again."""
        fresh = recorded_accounts(self._workspace, repo, config.coordination_branch)
        with self._lock:
            self._seen |= {account.id: account for account in fresh if account.run == self._run}
            self._looked_at = -_LOOK_EVERY_S

    def spent(self, worker: str | None = None, *, session: str | None = None) -> Spent:
        """What one worker, one session or everybody used; at most two seconds old. From any thread."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
                self._look()
            mine = [each for each in self._seen.values() if worker is None or each.worker == worker]
            return total(each for each in mine if session is None or each.session == session)

    def refresh(self) -> None:
        """Read what has changed since the last look, also what was recorded meanwhile. From any thread."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        # The planner moves an account from the kept ones to the dropped ones, so these are read second.
        accounts = unrecorded_accounts(self._workspace)
        closed = {account.id for account in self._seen.values() if account.ended is not None}
        accounts += accounts_set_aside(self._workspace, closed)
        self._seen |= {account.id: account for account in accounts if account.run == self._run}
        self._looked_at = time.monotonic()


def limits_and_use(budget: Budget, spent: Spent) -> list[tuple[str, float, float]]:
    """Return (unit, limit, amount used) of every limit that a budget sets."""
    amounts = (
        ("USD", budget.usd, spent.usd),
        ("evaluations", budget.evaluations, spent.evaluations),
        ("turns", budget.turns, spent.turns),
        ("minutes", budget.minutes, spent.seconds / 60),
        ("tokens", budget.tokens, spent.tokens),
    )
    return [(unit, limit, used) for unit, limit, used in amounts if limit is not None]


def over(budget: Budget, spent: Spent, whose: str) -> str | None:
    """Return the first limit that is reached, as a sentence; None when none is reached."""
    reached = ((unit, limit) for unit, limit, used in limits_and_use(budget, spent) if used >= limit)
    return next((f"{limit:g} {unit} {whose} are used up" for unit, limit in reached), None)


def used_up(config: Config, worker: str, purse: Purse) -> str | None:
    """Why neither this session nor another of this worker may go on."""
    of_worker = over(config.agent.per_worker, purse.spent(worker), f"for {worker}")
    return of_worker or over(config.agent.overall, purse.spent(), f"for the run {config.run}")


@dataclass
class Governor:
    """Watches one session."""

    config: Config
    worker: str
    meter: Meter
    purse: Purse
    desk: Desk
    before: Spent = field(default_factory=Spent)
    """What earlier openings of the same session used."""
    refused: Callable[[], str | None] = lambda: None
    """Why a request was refused that did not fit in what is left; None while none was."""
    _last_key: str = ""
    _repeats: int = 0
    _moved_at: float = field(default_factory=time.monotonic)

    def out_of_budget(self) -> str | None:
        """Why nothing may be spent any more. From any thread."""
        session = over(self.config.agent.per_session, self.before + self.meter.spent, "for a session")
        return session or self.refused() or used_up(self.config, self.worker, self.purse)

    def astray(self, event: Event) -> str | None:
        """Why this session is to end though it has budget."""
        limits = self.config.agent.per_session
        if isinstance(event, ToolUse):
            self._moved_at = time.monotonic()
            self._repeats = self._repeats + 1 if event.key and event.key == self._last_key else 1
            self._last_key = event.key
        if limits.repeats is not None and self._repeats >= limits.repeats:
            return f"one tool with the same input {self._repeats} times in a row"
        if limits.duplicates is not None and self.desk.duplicates >= limits.duplicates:
            return f"{self.desk.duplicates} submissions in a row of what was submitted before"
        if self.desk.hacks >= _HACKS:
            return f"{self.desk.hacks} verdicts of REWARD_HACK"
        silent_s = time.monotonic() - max(self._moved_at, self.meter.heard_at, self.desk.answered_at)
        if limits.silence_minutes is not None and silent_s >= limits.silence_minutes * 60:
            return f"not a word for {silent_s / 60:.2g} minutes"
        return None
