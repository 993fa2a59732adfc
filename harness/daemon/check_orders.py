"""Checks that workers have ordered: sent to a judge beside its evaluations, at a limited rate for each worker."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from harness.daemon.snapshots import Snapshots
from harness.errors import HarnessError
from harness.git.repo import Repo
from harness.model.config import Config
from harness.model.judging import CheckOrder, CheckReply, CheckRequest
from harness.model.problem import Problem
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import CheckAnswered, JudgeClient
from harness.workspace.order_files import OrderQueue, ordered_solution

EVERY_S = 2.0
"""Least time between two checks of a worker. An earlier order waits."""


@dataclass
class CheckOrders:
    """The orders of one daemon. Not thread-safe."""

    workspace: Workspace
    config: Config
    repo: Repo
    snapshots: Snapshots
    _orders: OrderQueue[CheckOrder] = field(init=False)
    _in_progress: dict[str, str] = field(default_factory=dict)
    """Order -> its worker."""
    _not_before: dict[str, float] = field(default_factory=dict)
    """Worker -> monotonic time in seconds at which its next check may begin."""

    def __post_init__(self) -> None:
        self._orders = OrderQueue(self.workspace, CheckOrder)

    def hand_out(self, judges: Collection[JudgeClient]) -> None:
        """Send each order that may begin to the least busy ready judge of its target.

        Raises:
            OSError: the directory of orders cannot be read.
        """
        for order in self._orders.waiting():
            if order.kind != "check":
                continue
            fitting = [judge for judge in judges if judge.target == order.target]
            if order.id in self._in_progress or not fitting:
                continue
            if order.worker in self._in_progress.values():
                self.reply(order.id, CheckReply(error="this worker already has a check in progress; wait for it"))
            elif time.monotonic() >= self._not_before.get(order.worker, 0.0):
                judge = min(fitting, key=lambda client: (len(client.checks), client.state == "busy"))
                self._ask(judge, order)

    def ordered_baselines(self) -> list[CheckOrder]:
        """Return the orders of workers that wait for a problem's baselines.

        Raises:
            OSError: the directory of orders cannot be read.
        """
        return [order for order in self._orders.waiting() if order.kind == "baseline"]

    def problem_of(self, order: CheckOrder) -> Problem | None:
        """Return the problem of an order; None if it cannot be judged, after a reply with the reason."""
        try:
            return self.snapshots.problem(self.repo.tip(self.config.coordination_branch), order.problem)
        except HarnessError as error:
            self.reply(order.id, CheckReply(error=error.message))
            return None

    def _ask(self, judge: JudgeClient, order: CheckOrder) -> None:
        problem = self.problem_of(order)
        if problem is None:
            return
        self._in_progress[order.id] = order.worker
        judge.ask_check(
            CheckRequest(
                **problem.request_fields,
                id=order.id,
                solution_dir=str(ordered_solution(self.workspace, order)),
                show=order.show,
                function=order.function,
            )
        )

    def pass_on(self, checked: CheckAnswered) -> None:
        """Write an answer for its worker."""
        self.reply(checked.request.id, CheckReply(answer=checked.answer))

    def lost(self, checks: Iterable[CheckRequest]) -> None:
        """Reply to workers whose checks were lost with a judge's process."""
        error = "the judge ended during the check and restarts: order the check again"
        for request in checks:
            self.reply(request.id, CheckReply(error=error))

    def reply(self, order_id: str, reply: CheckReply) -> None:
        """Write the reply to an order for its worker.

        Args:
            reply: of a baseline order, an error, or nothing if the ledger has the baselines.
        """
        worker = self._in_progress.pop(order_id, None)
        if worker is not None:
            self._not_before[worker] = time.monotonic() + EVERY_S
        self._orders.reply(order_id, reply)
