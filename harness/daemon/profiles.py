"""Profiles that workers have ordered, made by idle judges without waiting candidates."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from harness.daemon.snapshots import Snapshots
from harness.errors import HarnessError
from harness.model.counters import CounterReport
from harness.model.judging import JudgeRequest
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import JudgeClient, RequestAnswered
from harness.workspace.order_files import OrderQueue, ProfileOrder

WITHIN_S = 180.0
"""A judge without an answer to a profile after this time is ended. The profile itself takes 20 s at most."""


class Profiles:
    """Orders in progress, by device. Not thread-safe.

    Args:
        tip: returns the commit of the coordination branch.
    """

    def __init__(self, workspace: Workspace, snapshots: Snapshots, tip: Callable[[], str]) -> None:
        self._orders = OrderQueue(workspace, ProfileOrder)
        self._snapshots, self._tip = snapshots, tip
        self._in_progress: dict[str, ProfileOrder] = {}

    def give(self, judge: JudgeClient) -> None:
        """Send the oldest profile order of its target that is not in progress to an idle judge."""
        in_progress_ids = {order.id for order in self._in_progress.values()}
        for order in self._orders.waiting():
            if order.target != judge.target or order.id in in_progress_ids:
                continue
            try:
                request = self._request(order)
            except HarnessError as error:
                self._orders.reply(order.id, CounterReport(reason=error.message, fix=error.remedy))
                continue
            self._in_progress[judge.device] = order
            judge.ask(request, within_s=WITHIN_S)
            return

    def pass_on(self, device: str, request_answered: RequestAnswered) -> None:
        """Pass a judge's report on to the worker."""
        order = self._in_progress.pop(device, None)
        if order is not None:
            report = request_answered.answer.counters
            reason = " ".join((request_answered.answer.reason or "the judge gave no reason").split())
            self._orders.reply(order.id, report or CounterReport(reason=reason))

    def lost(self, device: str) -> None:
        """Answer the order of a judge that ended, if it was making a profile."""
        order = self._in_progress.pop(device, None)
        if order is not None:
            self._orders.reply(order.id, CounterReport(reason="the judge ended while it made the profile"))

    def _request(self, order: ProfileOrder) -> JudgeRequest:
        problem = self._snapshots.problem(self._tip(), order.problem)
        candidate = self._snapshots.candidate(order.commit, order.problem, order.target, order.tree)
        return JudgeRequest(
            **problem.request_fields,
            id=uuid.uuid4().hex,
            kind="profile",
            solution_dir=str(candidate),
            workload=order.workload,
        )
