"""The money limits of a session's requests: each request reserves what it may cost before it is forwarded.

All workers of a run reserve in one file (`harness.ledger.reservations`), so that a run ends at its limit plus at most
what answers cost beyond their reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.agents.governor import Purse
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.request_cost import RequestBound, RequestBounds
from harness.ledger.accounts import Spent
from harness.ledger.reservations import Reservation, changing_reservations, new_reservation, release
from harness.model.config import Budget, Config, Price
from harness.workspace.directories import Workspace


@dataclass(frozen=True)
class MoneyLimit:
    """One limit in USD, what counts against it, and whether it ends only the session."""

    usd: float
    whose: str
    """In words: `for the run main`."""
    spent_usd: Callable[[], float]
    covers: Callable[[Reservation], bool]
    of_session: bool = False


@dataclass(frozen=True)
class Reserved:
    """The request may be forwarded; its reservation is None where no limit holds."""

    reservation: Reservation | None
    size: int


@dataclass(frozen=True)
class NoRoomYet:
    """The request fits when other requests in flight cost less than they have reserved."""

    why: str


@dataclass(frozen=True)
class Refused:
    """The request may cost more than the rest of a limit, and that rest never grows."""

    why: str
    of_session: bool


class RequestBudget:
    """Reserves for the requests of one session. From any thread.

    Args:
        workspace: whose reservations.
        meter: the session's account.
        purse: reads what others have spent.
        limits: all that hold for the session.
        prices: the run's own prices.
    """

    def __init__(
        self,
        workspace: Workspace,
        meter: Meter,
        purse: Purse,
        limits: tuple[MoneyLimit, ...],
        prices: Mapping[str, Price],
    ) -> None:
        self._workspace, self._meter, self._purse, self._limits = workspace, meter, purse, limits
        self._bounds = RequestBounds(prices)
        self._closed = False
        self.refused: Refused | None = None
        """The last request that was refused: the session ends."""

    def reserve(self, body: bytes) -> Reserved | NoRoomYet | Refused:
        """Reserve what a request may cost, if it fits in what is left of every limit.

        Raises:
            FormatError: the request is not a JSON object.
            ConfigurationError: the file of reservations cannot be written.
        """
        if not self._limits:
            return Reserved(None, len(body))
        bound = self._bounds.bound(body)
        account = self._meter.account
        fresh = new_reservation(run=account.run, worker=account.worker, account=account.id, usd=bound.usd)
        with changing_reservations(self._workspace) as reservations:
            if self._closed:  # its client has gone
                return Refused("the session has ended", of_session=True)
            self._purse.refresh()
            waits = None
            for limit in self._limits:
                left_usd = limit.usd - limit.spent_usd()
                if bound.usd > left_usd:
                    self.refused = Refused(_too_little(limit, left_usd, bound), limit.of_session)
                    return self.refused
                reserved_usd = sum(each.usd for each in reservations if limit.covers(each))
                if bound.usd > left_usd - reserved_usd:
                    of_limit = f"{limit.usd:g} USD {limit.whose}"
                    waits = NoRoomYet(f"requests in flight reserve {reserved_usd:.2f} of the {of_limit}")
            if waits is not None:
                return waits
            reservations.append(fresh)
        return Reserved(fresh, len(body))

    def settle(self, reserved: Reserved, answered: Spent | None) -> None:
        """Release a request's reservation. What it cost is in its account by then."""
        if answered is not None:
            self._bounds.learn(reserved.size, answered)
        reservation = reserved.reservation
        if reservation is not None:
            release(self._workspace, lambda each: each.id == reservation.id)

    def close(self) -> None:
        """Release what the session still reserves; it reserves nothing any more."""
        self._closed = True
        if self._limits:
            account = self._meter.account.id
            release(self._workspace, lambda each: each.account == account)


def worker_limits(config: Config, meter: Meter, purse: Purse, before: Spent) -> tuple[MoneyLimit, ...]:
    """Return the limits of a worker's session.

    Args:
        config: names them.
        meter: the session's account.
        purse: what the run has spent.
        before: what earlier openings of the same session used.
    """
    account, session_usd = meter.account, config.agent.per_session.usd
    of_session = (
        MoneyLimit(
            session_usd,
            "for a session",
            lambda: before.usd + meter.account.spent.usd,
            lambda each: each.account == account.id,
            of_session=True,
        )
        if session_usd is not None
        else None
    )
    limits = (of_session, *_of_worker_and_run(config, config.agent.per_worker, account.worker, purse))
    return tuple(limit for limit in limits if limit is not None)


def planner_limits(config: Config, worker: str, purse: Purse) -> tuple[MoneyLimit, ...]:
    """Return the limits of the planner's sessions."""
    limits = _of_worker_and_run(config, config.planner.budget, worker, purse)
    return tuple(limit for limit in limits if limit is not None)


def _of_worker_and_run(config: Config, budget: Budget, worker: str, purse: Purse) -> tuple[MoneyLimit | None, ...]:
    run, run_usd = config.run, config.agent.overall.usd
    of_worker = (
        MoneyLimit(
            budget.usd,
            f"for {worker}",
            lambda: purse.spent(worker).usd,
            lambda each: (each.run, each.worker) == (run, worker),
        )
        if budget.usd is not None
        else None
    )
    of_run = (
        MoneyLimit(run_usd, f"for the run {run}", lambda: purse.spent().usd, lambda each: each.run == run)
        if run_usd is not None
        else None
    )
    return of_worker, of_run


def _too_little(limit: MoneyLimit, left_usd: float, bound: RequestBound) -> str:
    return (
        f"{max(left_usd, 0.0):.2f} of the {limit.usd:g} USD {limit.whose} are left, and the next request may cost "
        f"{bound.usd:.2f} ({bound.input_tokens} tokens read, {bound.output_tokens} written)"
    )
