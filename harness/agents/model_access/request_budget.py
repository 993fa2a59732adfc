"""Limits in USD on a session's requests: each request reserves its largest possible cost before it is forwarded.

All workers of a run reserve in one file (`harness.ledger.reservations`). The cost of a run therefore exceeds its limit
at most by the amount by which answers cost more than their reservations.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.agents.governor import SpendTracker, UsageLimits
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.prices import RequestBounds
from harness.ledger.accounts import Spent
from harness.ledger.reservations import Reservation, changing_reservations, new_reservation, release


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
        spend_tracker: reads the usage of all workers.
        limits: the limits that apply to the session.
    """

    def __init__(self, meter: Meter, spend_tracker: SpendTracker, limits: UsageLimits) -> None:
        self.meter, self._spend_tracker = meter, spend_tracker
        self._limits = [(limit, limit.budget.usd) for limit in limits if limit.budget.usd is not None]
        self._bounds = RequestBounds(meter.prices)
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
        bound, account = self._bounds.bound(body), self.meter.account
        reservation = new_reservation(run=account.run, worker=account.worker, account=account.id, usd=bound.usd)
        with changing_reservations(self.meter.workspace) as reservations:
            if self._closed:  # the client has disconnected
                return Refused("the session has ended", of_session=True)
            self._spend_tracker.refresh()
            waits = None
            for limit, usd in self._limits:
                left_usd, of_limit = usd - limit.spent().usd, f"of the {usd:g} USD {limit.scope}"
                if bound.usd > left_usd:
                    reason = (
                        f"{max(left_usd, 0.0):.2f} {of_limit} are left, and the next request may cost {bound.usd:.2f} "
                        f"({bound.input_tokens} tokens read, {bound.output_tokens} written)"
                    )
                    self.refused = Refused(reason, limit.of_session)
                    return self.refused
                reserved_usd = sum(earlier.usd for earlier in reservations if limit.covers(earlier))
                if bound.usd > left_usd - reserved_usd:
                    waits = BudgetReserved(f"requests in flight reserve {reserved_usd:.2f} {of_limit}")
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
            release(self.meter.workspace, lambda reservation: reservation.id == settled.id)

    def refusal(self) -> str | None:
        """Return the reason of the last refusal; None without one."""
        return self.refused.reason if self.refused else None

    def close(self) -> None:
        """Release the session's reservations and refuse further ones."""
        self._closed = True
        if self._limits:
            release(self.meter.workspace, lambda reservation: reservation.account == self.meter.account.id)
