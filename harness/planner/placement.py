"""Placement of workers on ranked problems, for the planner's policy.

A row that a person pinned does not change. A paused problem gets no worker. A worker stays on its problem for a slice.
A problem gets a second worker only if nothing else is open to that worker.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from harness.model.assignment import Assignment
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, WorkerFacts

UNCOVERED, OPEN, STALE = range(3)
"""Tiers of problems: without a slice of evaluations yet; open; not worth an evaluation at present."""
_BETTER = 1.25
"""A worker that has completed its slice moves only if the other value is larger by this factor, because it loses its
context when it moves."""


class Rank(NamedTuple):
    """Order in which problems are chosen: by tier, then by ascending `order`, then by descending `value`."""

    tier: int
    order: int
    value: float
    """Expected gain of one more evaluation."""


WhyGo = Callable[[ProblemFacts, Rank], str]


def place_workers(inputs: PolicyInputs, ranks: Mapping[str, Rank], why_go: WhyGo) -> Decision:
    """Assign workers to problems.

    Rows that a person pinned or paused do not change. A worker that has nothing left to try gets no row.

    Args:
        why_go: returns the reason, for people, to move a worker to an open problem.
    """
    fixed = tuple(row for row in inputs.assignments if row.state != "active")
    table = _Table(inputs, ranks, why_go)
    reasons = {
        worker: f"pinned to {problem} by a person" + (", which is paused: no work" if problem in table.paused else "")
        for worker, problem in table.pinned.items()
    }
    rows: list[Assignment] = []
    for worker in sorted(inputs.workers, key=lambda facts: facts.worker):
        if worker.worker in table.pinned:
            continue
        row, reasons[worker.worker] = table.place(worker)
        rows += [row] if row else []
    return Decision(assignments=(*fixed, *rows), reasons=dict(sorted(reasons.items())))


class _Table:
    """The problems of one decision, and the number of workers on each, updated with each placement.

    Problems are numbered by rank. `_free` has the numbers of those without a worker, ascending, so that a decision for
    200 workers and 235 problems examines few problems for each worker.
    """

    def __init__(self, inputs: PolicyInputs, ranks: Mapping[str, Rank], why_go: WhyGo) -> None:
        self.paused = {row.problem for row in inputs.assignments if row.state == "paused"}
        self.pinned = {row.worker: row.problem for row in inputs.assignments if row.state == "pinned"}
        self._policy, self._ranks, self._why_open = inputs.policy, ranks, why_go
        self._facts = {facts.problem: facts for facts in inputs.problems}
        open_problems = [facts.problem for facts in inputs.problems if facts.problem not in self.paused]
        self._order = sorted(open_problems, key=self._static_rank)
        self._numbers = {problem: number for number, problem in enumerate(self._order)}
        rows = {row.worker: row for row in inputs.assignments if row.state == "active"}
        self._rows: dict[str, Assignment] = {}
        self._finished_here: dict[str, Assignment] = {}
        for worker in inputs.workers:
            row = rows.get(worker.worker)
            if row is None or worker.worker in self.pinned or not self._is_available(worker, row.problem):
                continue
            # With many workers, a finished problem becomes available again within minutes, while its worker waits for
            # a row with another problem: it must not stay there idle.
            if row.problem in worker.finished:
                self._finished_here[worker.worker] = row
            else:
                self._rows[worker.worker] = row
        self._crowd = Counter([*self.pinned.values(), *(row.problem for row in self._rows.values())])
        self._free = [number for number, problem in enumerate(self._order) if not self._crowd[problem]]

    def place(self, worker: WorkerFacts) -> tuple[Assignment | None, str]:
        """Return the worker's row, unchanged or new, and the reason; no row if it has nothing left to try."""
        row = self._rows.get(worker.worker)
        if row:
            self._leave(row.problem)
        finished_here = self._finished_here.get(worker.worker)
        leaves = row or finished_here
        choice = self._best_elsewhere(worker, leaves.problem if leaves else None)
        if choice is None and finished_here:
            choice = finished_here.problem
        if row:
            reason = self._why_stay(worker, row.problem, choice)
            if reason:
                self._join(row.problem)
                return row, reason
        if choice is None:
            return None, "nothing left to try: every open problem is finished for this worker"
        reason = self._why_go(choice)
        self._join(choice)
        return Assignment(worker=worker.worker, problem=choice, wanted=reason), reason

    def _join(self, problem: str) -> None:
        if not self._crowd[problem] and problem in self._numbers:
            self._free.pop(bisect_left(self._free, self._numbers[problem]))
        self._crowd[problem] += 1

    def _leave(self, problem: str) -> None:
        self._crowd[problem] -= 1
        if not self._crowd[problem] and problem in self._numbers:
            insort(self._free, self._numbers[problem])

    def _is_available(self, worker: WorkerFacts, problem: str) -> bool:
        """Return true if the problem is open, and not finished for the worker or stale for long enough."""
        if problem not in self._numbers:
            return False
        finished = worker.finished.get(problem)
        may_return = self._facts[problem].elsewhere >= self._policy.return_after
        return finished is None or (finished == "stale" and may_return)

    def _static_rank(self, problem: str) -> tuple[int, int, float, str]:
        rank = self._ranks[problem]
        return rank.tier, rank.order, -rank.value, problem

    def _best_elsewhere(self, worker: WorkerFacts, present: str | None) -> str | None:
        """Return the best ranked of the least crowded problems available to the worker; None without one."""
        for number in self._free:
            problem = self._order[number]
            if problem != present and self._is_available(worker, problem):
                return problem
        crowded = [problem for problem in self._order if problem != present and self._is_available(worker, problem)]
        return min(crowded, key=self._crowd.__getitem__, default=None)

    def _why_stay(self, worker: WorkerFacts, present: str, best: str | None) -> str | None:
        """Return the reason to keep the worker on its problem; None to move it. The worker itself is not counted."""
        if best is None or self._crowd[best] >= max(self._crowd[present], 1):
            return "stays: nothing else is free"
        present_rank, best_rank = self._ranks[present], self._ranks[best]
        if self._crowd[present] and best_rank.tier < STALE:
            return None
        if worker.stint < self._policy.slice_evaluations:
            return f"stays: {worker.stint} of {self._policy.slice_evaluations} evaluations of its slice done"
        if best_rank.tier != present_rank.tier:
            return None if best_rank.tier < present_rank.tier else "stays: every free problem is staler"
        if present_rank.tier == STALE or best_rank.value > _BETTER * present_rank.value:
            return None
        return f"stays: expected gain {present_rank.value:.2g} against {best_rank.value:.2g} on {best}"

    def _why_go(self, problem: str) -> str:
        facts, rank = self._facts[problem], self._ranks[problem]
        if rank.tier == UNCOVERED:
            reason = f"coverage: {facts.evaluations} of {self._policy.slice_evaluations} evaluations so far"
        else:
            reason = self._why_open(facts, rank)
        return reason + ("; shared, nothing else is free" if self._crowd[problem] else "")
