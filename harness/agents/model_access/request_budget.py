"""Limits in USD on a session's requests: each request reserves its largest possible cost before it is forwarded.

All workers of a run reserve in one file (`harness.ledger.reservations`). The cost of a run therefore exceeds its limit
at most by the amount by which answers cost more than their reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.agents.governor import SpendTracker
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.request_cost import RequestBound, RequestBounds
from harness.ledger.accounts import Spent
from harness.ledger.reservations import Reservation, changing_reservations, new_reservation, release
from harness.model.config import Budget, Config, Price
from harness.workspace.directories import Workspace


@dataclass(frozen=True)
class MoneyLimit:
    """A limit in USD and the amounts that count against it."""

    usd: float
    scope: str
    """The scope in words, such as `for the run main`."""
    spent_usd: Callable[[], float]
    covers: Callable[[Reservation], bool]
    """Return True for a reservation that counts against the limit."""
    of_session: bool = False
    """True if reaching the limit ends only the session."""


@dataclass(frozen=True)
class Reserved:
    """The request may be forwarded; its reservation is None if no limit is set."""

    reservation: Reservation | None
    request_bytes: int


@dataclass(frozen=True)
class BudgetReserved:
    """The request must wait: other requests in flight reserve the budget that it needs."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """The request may cost more than the remainder of a limit, and a remainder never grows."""

    reason: str
    of_session: bool


class RequestBudget:
    """Reserves the cost of one session's requests. Thread-safe.

    Args:
        workspace: stores the reservations.
        meter: the session's account.
        spend_tracker: reads the usage of all workers.
        limits: the limits that apply to the session.
        prices: model name pattern -> price, from harness.yaml.
    """

    def __init__(
        self,
        workspace: Workspace,
        meter: Meter,
        spend_tracker: SpendTracker,
        limits: tuple[MoneyLimit, ...],
        prices: Mapping[str, Price],
    ) -> None:
        self._workspace, self._meter, self._spend_tracker, self._limits = workspace, meter, spend_tracker, limits
        self._bounds = RequestBounds(prices)
        self._closed = False
        self.refused: Refused | None = None
        """The last refusal, which ends the session."""

    def reserve(self, body: bytes) -> Reserved | BudgetReserved | Refused:
        """Reserve the largest possible cost of a request, if no limit is exceeded by it.

        Args:
            body: the request, as JSON.

        Raises:
            FormatError: the request is not a JSON object.
            ConfigurationError: the file of reservations cannot be written.
        """
        if not self._limits:
            return Reserved(None, len(body))
        bound = self._bounds.bound(body)
        account = self._meter.account
        reservation = new_reservation(run=account.run, worker=account.worker, account=account.id, usd=bound.usd)
        with changing_reservations(self._workspace) as reservations:
            if self._closed:  # the client has disconnected
                return Refused("the session has ended", of_session=True)
            self._spend_tracker.refresh()
            waits = None
            for limit in self._limits:
                left_usd = limit.usd - limit.spent_usd()
                if bound.usd > left_usd:
                    self.refused = Refused(_refusal(limit, left_usd, bound), limit.of_session)
                    return self.refused
                reserved_usd = sum(earlier.usd for earlier in reservations if limit.covers(earlier))
                if bound.usd > left_usd - reserved_usd:
                    of_limit = f"{limit.usd:g} USD {limit.scope}"
                    waits = BudgetReserved(f"requests in flight reserve {reserved_usd:.2f} of the {of_limit}")
            if waits is not None:
                return waits
            reservations.append(reservation)
        return Reserved(reservation, len(body))

    def settle(self, reserved: Reserved, answer_spent: Spent | None) -> None:
        """Release a request's reservation, after its cost has been added to the account.

        Args:
            reserved: the result of `reserve`.
            answer_spent: tokens and cost of the answer, which refine later bounds; None without an answer.
        """
        if answer_spent is not None:
            self._bounds.learn(reserved.request_bytes, answer_spent)
        settled = reserved.reservation
        if settled is not None:
            release(self._workspace, lambda reservation: reservation.id == settled.id)

    def close(self) -> None:
        """Release the session's reservations and refuse further ones."""
        self._closed = True
        if self._limits:
            account = self._meter.account.id
            release(self._workspace, lambda reservation: reservation.account == account)


def worker_limits(config: Config, meter: Meter, spend_tracker: SpendTracker, before: Spent) -> tuple[MoneyLimit, ...]:
    """Return the limits of a worker's session.

    Args:
        config: sets the limits.
        meter: the session's account.
        spend_tracker: reads the usage of the run.
        before: usage of earlier openings of the same session.
    """
    account, session_usd = meter.account, config.agent.per_session.usd
    of_session = (
        MoneyLimit(
            session_usd,
            "for a session",
            lambda: before.usd + meter.account.spent.usd,
            lambda reservation: reservation.account == account.id,
            of_session=True,
        )
        if session_usd is not None
        else None
    )
    limits = (of_session, *_of_worker_and_run(config, config.agent.per_worker, account.worker, spend_tracker))
    return tuple(limit for limit in limits if limit is not None)


def planner_limits(config: Config, worker: str, spend_tracker: SpendTracker) -> tuple[MoneyLimit, ...]:
    """Return the limits of the planner's sessions.

    Args:
        config: sets the limits.
        worker: the planner's name in the accounts.
        spend_tracker: reads the usage of the run.
    """
    limits = _of_worker_and_run(config, config.planner.budget, worker, spend_tracker)
    return tuple(limit for limit in limits if limit is not None)


def _of_worker_and_run(
    config: Config, budget: Budget, worker: str, spend_tracker: SpendTracker
) -> tuple[MoneyLimit | None, ...]:
    run, run_usd = config.run, config.agent.overall.usd
    of_worker = (
        MoneyLimit(
            budget.usd,
            f"for {worker}",
            lambda: spend_tracker.spent(worker).usd,
            lambda reservation: (reservation.run, reservation.worker) == (run, worker),
        )
        if budget.usd is not None
        else None
    )
    of_run = (
        MoneyLimit(
            run_usd,
            f"for the run {run}",
            lambda: spend_tracker.spent().usd,
            lambda reservation: reservation.run == run,
        )
        if run_usd is not None
        else None
    )
    return of_worker, of_run


def _refusal(limit: MoneyLimit, left_usd: float, bound: RequestBound) -> str:
    return (
        f"{max(left_usd, 0.0):.2f} of the {limit.usd:g} USD {limit.scope} are left, and the next request may cost "
        f"{bound.usd:.2f} ({bound.input_tokens} tokens read, {bound.output_tokens} written)"
    )
