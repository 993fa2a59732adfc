"""Who should work on what: a pure function of what the ledger says.

`decide` reads nothing and keeps nothing: the same inputs always give the same decision, so that recorded inputs can
be decided again, by this policy or another, without a device. In order of weight:

1. What a person pinned stays; a problem a person paused gets no worker.
2. A worker stays where it is for one slice (`policy.slice_evaluations`) unless the problem has nothing left for it.
3. Coverage: problems with less than one slice of evaluations come first, the least covered first.
4. Then the highest expected gain per cost (`value`); stale problems only when nothing else is left or when
   `policy.return_after` evaluations went elsewhere since.
5. Two workers share a problem only when nothing else is open to the second one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from harness.model.assignment import Assignment
from harness.model.config import PolicyConfig
from harness.model.process_status import FinishReason

NAME = "coverage-then-gain/1"
"""Recorded with each decision; changes whenever the same inputs may give another decision."""

_BETTER = 1.25
"""A worker past its slice moves only for a value so many times its own: moving costs it its context."""
_COST_RANGE = (0.25, 4.0)
"""Costs relative to the mean are held within this range, so that one slow build does not starve a problem."""
_UNKNOWN_HEADROOM = 0.5
"""Headroom of a problem nothing has passed on yet: that of a solution exactly as fast as the baseline."""

_UNCOVERED, _OPEN, _STALE = range(3)


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProblemFacts(_Facts):
    """What the ledger says of one problem, for one run and target."""

    problem: str
    evaluations: int = 0
    failures: int = 0
    """Evaluations that did not pass."""
    duplicates: int = 0
    """Submissions of trees that were known already."""
    speedup: float | None = None
    score: float | None = None
    """SOL score of the best that passed: 0.5 at the baseline, 1 at the bound."""
    since_gain: int = 0
    """Evaluations since the last one that was better than all before."""
    recent_gain: float = 0.0
    """ln of the speed-up gained over the last `stale_after` evaluations."""
    cost_s: float = 0.0
    """Seconds of judging and building spent on it."""
    elsewhere: int = 0
    """Evaluations on other problems since the last one on this."""


class WorkerFacts(_Facts):
    """What one worker has done."""

    worker: str
    stint: int = 0
    """Its evaluations on its present problem since it came there."""
    finished: dict[str, FinishReason] = {}
    """Problems it says it can do no more on, and why."""


class PolicyInputs(_Facts):
    """Everything a decision depends on. Recorded with it."""

    problems: tuple[ProblemFacts, ...]
    workers: tuple[WorkerFacts, ...]
    assignments: tuple[Assignment, ...] = ()
    """The table in force."""
    policy: PolicyConfig = PolicyConfig()


class Decision(_Facts):
    """The table to put in force, and one line of reason per worker the policy looked at."""

    assignments: tuple[Assignment, ...]
    reasons: dict[str, str]


def decide(inputs: PolicyInputs) -> Decision:
    """Assign workers to problems.

    Rows that a person pinned or paused are kept byte for byte. A worker for whom nothing is left gets no row.
    """
    kept = tuple(row for row in inputs.assignments if row.state != "active")
    paused = {row.problem for row in kept if row.state == "paused"}
    pinned = {row.worker: row.problem for row in kept if row.state == "pinned"}
    table = _Table(inputs, paused=paused, pinned=pinned)
    reasons = {
        worker: f"pinned to {problem} by a person" + (", which is paused: no work" if problem in paused else "")
        for worker, problem in pinned.items()
    }
    rows: list[Assignment] = []
    for worker in sorted(inputs.workers, key=lambda facts: facts.worker):
        if worker.worker in pinned:
            continue
        row, reasons[worker.worker] = table.place(worker)
        rows += [row] if row else []
    return Decision(assignments=(*kept, *rows), reasons=dict(sorted(reasons.items())))


def value(facts: ProblemFacts, policy: PolicyConfig, mean_cost_s: float) -> float:
    """Expected gain per cost of one more evaluation, without a unit.

    headroom to the bound x (hope that fades with evaluations that gained nothing + the recent slope) x the share of
    attempts that are of use (passed, not duplicates; Laplace's rule) / the cost of an evaluation relative to the mean.
    """
    if facts.score is not None:
        headroom = 1.0 - facts.score
    else:
        headroom = 1.0 / (1.0 + facts.speedup) if facts.speedup else _UNKNOWN_HEADROOM
    hope = 1.0 / (1.0 + facts.since_gain / policy.stale_after)
    slope = min(max(facts.recent_gain, 0.0), 1.0)
    useful = (facts.evaluations - facts.failures + 1) / (facts.evaluations + 2)
    fresh = (facts.evaluations + 1) / (facts.evaluations + facts.duplicates + 1)
    cost = 1.0
    if facts.evaluations and mean_cost_s > 0:
        cost = facts.cost_s / facts.evaluations / mean_cost_s
    low, high = _COST_RANGE
    return max(headroom, 0.01) * (hope + slope) * useful * fresh / min(max(cost, low), high)


class _Table:
    """The problems of one decision, and how many workers are on each (`crowd`) as it goes along."""

    def __init__(self, inputs: PolicyInputs, *, paused: set[str], pinned: Mapping[str, str]) -> None:
        self.policy = inputs.policy
        self.facts = {facts.problem: facts for facts in inputs.problems}
        self.open = [facts.problem for facts in inputs.problems if facts.problem not in paused]
        self.values = {f.problem: value(f, inputs.policy, _mean_cost_s(inputs.problems)) for f in inputs.problems}
        rows = {row.worker: row for row in inputs.assignments if row.state == "active"}
        self._rows = {
            worker.worker: rows[worker.worker]
            for worker in inputs.workers
            if worker.worker in rows
            and worker.worker not in pinned
            and rows[worker.worker].problem in self.available(worker)
        }
        self.crowd = Counter([*pinned.values(), *(row.problem for row in self._rows.values())])

    def place(self, worker: WorkerFacts) -> tuple[Assignment | None, str]:
        """The worker's row, kept or new, and why; no row when nothing is left for it."""
        row = self._rows.get(worker.worker)
        if row:
            self.crowd[row.problem] -= 1
            reason = self._why_stay(worker, row.problem)
            if reason:
                self.crowd[row.problem] += 1
                return row, reason
        elsewhere = [p for p in self.available(worker) if row is None or p != row.problem]
        choice = min(elsewhere, key=self._rank, default=None)
        if choice is None:
            return None, "nothing left to try: every open problem is finished for this worker"
        reason = self._why_go(choice)
        self.crowd[choice] += 1
        return Assignment(worker=worker.worker, problem=choice, wanted=reason), reason

    def available(self, worker: WorkerFacts) -> list[str]:
        """Problems this worker can do something on: open, and not finished for it, or stale for long enough."""
        return [
            problem
            for problem in self.open
            if worker.finished.get(problem) is None
            or (worker.finished[problem] == "stale" and self.facts[problem].elsewhere >= self.policy.return_after)
        ]

    def tier(self, problem: str) -> int:
        """How early a problem is to be taken: not covered yet, open, stale."""
        facts = self.facts[problem]
        if facts.evaluations < self.policy.slice_evaluations:
            return _UNCOVERED
        if facts.since_gain >= self.policy.stale_after and facts.elsewhere < self.policy.return_after:
            return _STALE
        return _OPEN

    def _why_stay(self, worker: WorkerFacts, here: str) -> str | None:
        """Why the worker is not to be moved now; None when it is. `crowd` counts the others only."""
        limit = max(self.crowd[here], 1)
        free = [p for p in self.available(worker) if p != here and self.crowd[p] < limit]
        best = min(free, key=self._rank, default=None)
        if best is None:
            return "stays: nothing else is free"
        if self.crowd[here] and self.tier(best) < _STALE:
            return None
        if worker.stint < self.policy.slice_evaluations:
            return f"stays: {worker.stint} of {self.policy.slice_evaluations} evaluations of its slice done"
        if self.tier(best) != self.tier(here):
            return None if self.tier(best) < self.tier(here) else "stays: what is free is staler"
        if self.tier(here) == _STALE or self.values[best] > _BETTER * self.values[here]:
            return None
        return f"stays: expected gain {self.values[here]:.2g} against {self.values[best]:.2g} on {best}"

    def _rank(self, problem: str) -> tuple[int, int, int, float, str]:
        facts, tier = self.facts[problem], self.tier(problem)
        order = {_UNCOVERED: facts.evaluations, _OPEN: 0, _STALE: -facts.elsewhere}[tier]
        return (self.crowd[problem], tier, order, -self.values[problem], problem)

    def _why_go(self, problem: str) -> str:
        facts, tier = self.facts[problem], self.tier(problem)
        if tier == _UNCOVERED:
            reason = f"coverage: {facts.evaluations} of {self.policy.slice_evaluations} evaluations so far"
        else:
            score = "no score yet" if facts.score is None else f"score {facts.score:.2f} of 1"
            reason = f"expected gain {self.values[problem]:.2g}: {score}, {facts.since_gain} evaluations without gain"
        return reason + ("; shared, nothing else is free" if self.crowd[problem] else "")


def _mean_cost_s(problems: Sequence[ProblemFacts]) -> float:
    evaluations = sum(facts.evaluations for facts in problems)
    return sum(facts.cost_s for facts in problems) / evaluations if evaluations else 0.0
