"""Checks that workers have ordered: handed to a judge beside its evaluations, at a limited rate for each worker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.daemon.snapshots import Snapshots
from harness.errors import HarnessError
from harness.git.repo import Repo
from harness.model.checking import CheckOrder, CheckReply, CheckRequest
from harness.model.config import Config
from harness.workspace.check_files import ordered_solution, reply_to_check, waiting_orders
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import CheckAnswered, JudgeClient

EVERY_S = 2.0
"""From a worker's last check to its next one. A worker that asks earlier waits."""
_ONE_AT_A_TIME = "this worker has a check under way already; wait for it"


@dataclass
class CheckOrders:
    """The orders of one daemon. One thread."""

    workspace: Workspace
    config: Config
    repo: Repo
    snapshots: Snapshots
    _under_way: dict[str, str] = field(default_factory=dict)
    """Order -> its worker."""
    _not_before: dict[str, float] = field(default_factory=dict)
    """Worker -> when its next check may begin, by the monotonic clock."""

    def hand_out(self, judges: Iterable[JudgeClient]) -> None:
        """Send what waits and may begin to the least busy ready judge of its target.

        Raises:
            OSError: the directory of orders cannot be read.
        """
        ready = [judge for judge in judges if judge.ready is not None]
        for order in waiting_orders(self.workspace):
            if order.kind != "check":
                continue
            fitting = [judge for judge in ready if judge.ready is not None and judge.ready.target == order.target]
            if order.id in self._under_way or not fitting:
                continue
            if order.worker in self._under_way.values():
                self._reply(order.id, CheckReply(error=_ONE_AT_A_TIME))
            elif time.monotonic() >= self._not_before.get(order.worker, 0.0):
                judge = min(fitting, key=lambda each: (len(each.checks), each.state == "busy"))
                self._ask(judge, order)

    def wanted_baselines(self) -> list[CheckOrder]:
        """Return the orders of workers that wait for a problem's baselines.

        Raises:
            OSError: the directory of orders cannot be read.
        """
        return [order for order in waiting_orders(self.workspace) if order.kind == "baseline"]

    def baseline_is_known(self, order: CheckOrder, error: str | None = None) -> None:
        """Let a worker go on: the ledger has the baselines, or they cannot be measured."""
        self._reply(order.id, CheckReply(error=error))

    def _ask(self, judge: JudgeClient, order: CheckOrder) -> None:
        try:
            problem = self.snapshots.problem(self.repo.tip(self.config.coordination_branch), order.problem)
        except HarnessError as error:
            self._reply(order.id, CheckReply(error=error.what))
            return
        self._under_way[order.id] = order.worker
        judge.ask_check(
            CheckRequest(
                id=order.id,
                problem=problem.key,
                problem_dir=str(problem.directory),
                problem_digest=problem.digest,
                data_root=str(problem.data_root) if problem.data_root else None,
                solution_dir=str(ordered_solution(self.workspace, order)),
                show=order.show,
                function=order.function,
            )
        )

    def answered(self, answered: CheckAnswered) -> None:
        """Leave an answer for its worker."""
        self._reply(answered.request.id, CheckReply(answer=answered.answer))

    def lost(self, checks: Iterable[CheckRequest]) -> None:
        """Tell workers that their checks went with a judge's process."""
        for request in checks:
            self._reply(request.id, CheckReply(error="the judge ended during the check and starts again: ask again"))

    def _reply(self, order_id: str, reply: CheckReply) -> None:
        worker = self._under_way.pop(order_id, None)
        if worker is not None:
            self._not_before[worker] = time.monotonic() + EVERY_S
        reply_to_check(self.workspace, order_id, reply)
