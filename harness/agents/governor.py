"""Reasons to end a running session: budget limits of the session, the worker and the run, and signs of misbehaviour.

The harness counts all amounts itself and does not rely on the agent's reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.agents.agent_tools import AgentTools
from harness.agents.model_access.meter import Meter
from harness.agents.session import End, Event, ToolUse
from harness.git.repo import Repo
from harness.ledger.accounts import Account, Spent, accounts_set_aside, recorded_accounts, total, unrecorded_accounts
from harness.ledger.reservations import Reservation
from harness.model.config import Budget, Config, SessionBudget
from harness.model.printable import amount_of
from harness.workspace.directories import Workspace

_REFRESH_S = 2.0
_MAX_REWARD_HACKS = 2
"""Number of REWARD_HACK verdicts that ends a session, as stated in COORDINATION.md."""


class SpendTracker:
    """Reads the usage of a run and its workers. Thread-safe, except `reread`.

    The accounts in the ledger are read once; the accounts that are not in the ledger yet are read again every 2 s.

    Args:
        repo: its repository, used only by the constructor and `reread`.
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


@dataclass(frozen=True)
class UsageLimit:
    """A budget, and the usage that counts against it."""

    budget: Budget
    scope: str
    """The scope in words, such as `for the run main`."""
    spent: Callable[[], Spent]
    covers: Callable[[Reservation], bool] = lambda _: False
    """Return True for a reservation that counts against the budget."""
    of_session: bool = False
    """True if reaching the limit ends only the session."""

    def amounts(self) -> list[tuple[str, float, float]]:
        """Return (unit in the singular, limit, amount used) of every limit that the budget sets."""
        spent = self.spent()
        amounts = (
            ("USD", self.budget.usd, spent.usd),
            ("evaluation", self.budget.evaluations, spent.evaluations),
            ("turn", self.budget.turns, spent.turns),
            ("minute", self.budget.minutes, spent.seconds / 60),
            ("token", self.budget.tokens, spent.tokens),
        )
        return [(unit, limit, used) for unit, limit, used in amounts if limit is not None]


UsageLimits = tuple[UsageLimit, ...]


def reached_limit(limits: UsageLimits) -> str | None:
    """Return the first limit that is reached, as a sentence; None if none is reached."""
    for limit in limits:
        for unit, amount, used in limit.amounts():
            if used >= amount:
                return f"the limit of {amount_of(amount, unit)} {limit.scope} is reached"
    return None


def session_limits(config: Config, meter: Meter, spend_tracker: SpendTracker, before: Spent) -> UsageLimits:
    """Return the limits of a worker's session.

    Args:
        before: usage of earlier openings of the same session.
    """
    account = meter.account
    of_session = UsageLimit(
        config.agent.per_session,
        "for a session",
        lambda: before + meter.spent,
        lambda reservation: reservation.account == account.id,
        of_session=True,
    )
    return of_session, *run_limits(config, config.agent.per_worker, account.worker, spend_tracker)


def run_limits(config: Config, budget: Budget, worker: str, spend_tracker: SpendTracker) -> UsageLimits:
    """Return the limits of a worker and of the run, for all of the worker's sessions.

    Args:
        worker: name of the worker, or of the planner.
    """
    run = config.run
    return (
        UsageLimit(
            budget,
            f"for {worker}",
            lambda: spend_tracker.spent(worker),
            lambda reservation: (reservation.run, reservation.worker) == (run, worker),
        ),
        UsageLimit(
            config.agent.overall,
            f"for the run {run}",
            spend_tracker.spent,
            lambda reservation: reservation.run == run,
        ),
    )


@dataclass
class Governor:
    """Decides when to end one session."""

    limits: UsageLimits
    per_session: SessionBudget
    """Sets the signs of misbehaviour."""
    meter: Meter
    agent_tools: AgentTools
    request_refusal: Callable[[], str | None] = lambda: None
    """Return the reason why a request exceeded the remaining budget; None if no request was refused."""
    _last_key: str = ""
    _repeats: int = 0

    def out_of_budget(self) -> str | None:
        """Return the reached limit of the session, the worker or the run; None without one. Thread-safe."""
        return self.request_refusal() or reached_limit(self.limits)

    def end_at_limit(self, end: End) -> End:
        """Return a session's end: `budget` if it failed after a limit was reached, because its request was refused."""
        limit = self.out_of_budget() if end.reason == "failed" else None
        return End("budget", limit) if limit else end

    def misbehaviour(self, event: Event) -> str | None:
        """Return the reason to end a session that still has budget; None without one.

        Repeated tool uses, repeated submissions, verdicts of REWARD_HACK and silence are such reasons.
        """
        limits = self.per_session
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
