"""Reasons to end a running session: budget limits of the session, the worker and the run, and signs of misbehaviour.

The harness counts all amounts itself and does not rely on the agent's reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.agents.agent_tools import AgentTools
from harness.agents.model_access.meter import Meter
from harness.agents.session import Event, ToolUse
from harness.git.repo import Repo
from harness.ledger.accounts import Account, Spent, accounts_set_aside, recorded_accounts, total, unrecorded_accounts
from harness.model.config import Budget, Config
from harness.workspace.directories import Workspace

_REFRESH_S = 2.0
_MAX_REWARD_HACKS = 2
"""Number of REWARD_HACK verdicts that ends a session, as stated in COORDINATION.md."""


class SpendTracker:
    """Reads the usage of a run and its workers. Thread-safe, except `reread`.

    The accounts in the ledger are read once; the accounts that are not in the ledger yet are read again every 2 s.

    Args:
        workspace: stores the accounts.
        repo: its repository, used only by the constructor and `reread`.
        config: names the run and the coordination branch.
    """

    def __init__(self, workspace: Workspace, repo: Repo, config: Config) -> None:
        self._workspace, self._run, self._branch = workspace, config.run, config.coordination_branch
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}
        self._read_at = -_REFRESH_S
        self.reread(repo)

    def reread(self, repo: Repo) -> None:
        """Read the ledger's accounts again from `repo`, the workspace's repository in the calling thread."""
        accounts = recorded_accounts(self._workspace, repo, self._branch)
        with self._lock:
            self._accounts |= {account.id: account for account in accounts if account.run == self._run}
            self._read_at = -_REFRESH_S

    def spent(self, worker: str | None = None, *, session: str | None = None) -> Spent:
        """Return the usage of a worker, a session or the whole run; it is at most 2 s old.

        Args:
            worker: name of the worker; None for all workers.
            session: id of the session; None for all sessions.
        """
        with self._lock:
            if time.monotonic() - self._read_at >= _REFRESH_S:
                self._read_recent()
            return total(
                account
                for account in self._accounts.values()
                if (worker is None or account.worker == worker) and (session is None or account.session == session)
            )

    def refresh(self) -> None:
        """Read the accounts that changed since the last read, those moved to the ledger meanwhile included."""
        with self._lock:
            self._read_recent()

    def _read_recent(self) -> None:
        # The planner moves an account from the kept ones to the dropped ones, so these are read second.
        accounts = unrecorded_accounts(self._workspace)
        closed = {account.id for account in self._accounts.values() if account.ended is not None}
        accounts += accounts_set_aside(self._workspace, closed)
        self._accounts |= {account.id: account for account in accounts if account.run == self._run}
        self._read_at = time.monotonic()


def limits_and_use(budget: Budget, spent: Spent) -> list[tuple[str, float, float]]:
    """Return (unit, limit, amount used) of every limit that a budget sets.

    Args:
        budget: the limits.
        spent: the usage that counts against them.
    """
    amounts = (
        ("USD", budget.usd, spent.usd),
        ("evaluations", budget.evaluations, spent.evaluations),
        ("turns", budget.turns, spent.turns),
        ("minutes", budget.minutes, spent.seconds / 60),
        ("tokens", budget.tokens, spent.tokens),
    )
    return [(unit, limit, used) for unit, limit, used in amounts if limit is not None]


def reached_limit(budget: Budget, spent: Spent, scope: str) -> str | None:
    """Return the first limit that is reached, as a sentence; None if none is reached.

    Args:
        budget: the limits.
        spent: the usage that counts against them.
        scope: the budget's scope in words, such as `for w01`.
    """
    reached = ((unit, limit) for unit, limit, used in limits_and_use(budget, spent) if used >= limit)
    return next((f"{limit:g} {unit} {scope} are used up" for unit, limit in reached), None)


def reached_worker_limit(config: Config, worker: str, spend_tracker: SpendTracker) -> str | None:
    """Return the limit of the worker or the run that prevents further sessions of the worker; None without one.

    Args:
        config: sets the limits.
        worker: name of the worker.
        spend_tracker: reads the usage of the run.
    """
    of_worker = reached_limit(config.agent.per_worker, spend_tracker.spent(worker), f"for {worker}")
    return of_worker or reached_limit(config.agent.overall, spend_tracker.spent(), f"for the run {config.run}")


@dataclass
class Governor:
    """Decides when to end one session."""

    config: Config
    meter: Meter
    spend_tracker: SpendTracker
    agent_tools: AgentTools
    before: Spent = field(default_factory=Spent)
    """Usage of earlier openings of the same session."""
    request_refusal: Callable[[], str | None] = lambda: None
    """Return the reason why a request exceeded the remaining budget; None if no request was refused."""
    _last_key: str = ""
    _repeats: int = 0

    def out_of_budget(self) -> str | None:
        """Return the reached limit of the session, the worker or the run; None without one. Thread-safe."""
        session = reached_limit(self.config.agent.per_session, self.before + self.meter.spent, "for a session")
        worker = self.meter.account.worker
        return session or self.request_refusal() or reached_worker_limit(self.config, worker, self.spend_tracker)

    def misbehaviour(self, event: Event) -> str | None:
        """Return the reason to end a session that still has budget; None without one.

        Repeated tool uses, repeated submissions, verdicts of REWARD_HACK and silence are such reasons.
        """
        limits = self.config.agent.per_session
        if isinstance(event, ToolUse):
            self.meter.record_activity()
            self._repeats = self._repeats + 1 if event.key and event.key == self._last_key else 1
            self._last_key = event.key
        if limits.repeats is not None and self._repeats >= limits.repeats:
            return f"{self._repeats} consecutive uses of one tool with the same input"
        if limits.duplicates is not None and self.agent_tools.duplicates >= limits.duplicates:
            return f"{self.agent_tools.duplicates} consecutive submissions of solutions that were submitted before"
        if self.agent_tools.reward_hacks >= _MAX_REWARD_HACKS:
            return f"{self.agent_tools.reward_hacks} verdicts of REWARD_HACK"
        silent_s = time.monotonic() - self.meter.last_activity
        if limits.silence_minutes is not None and silent_s >= limits.silence_minutes * 60:
            return f"no output of the agent for {silent_s / 60:.2g} minutes"
        return None
