"""The inputs of a decision and the decision itself, which are recorded together so that it can be repeated."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from harness.model.assignment import Assignment
from harness.model.base_models import StrictModel
from harness.model.config import PolicyConfig
from harness.model.process_status import FinishReason


class ProblemFacts(StrictModel):
    """State of one problem by the ledger, for one run and target."""

    problem: str
    evaluations: int = 0
    failures: int = 0
    """Evaluations that did not pass."""
    duplicates: int = 0
    """Submissions of trees that had been evaluated before."""
    speedup: float | None = None
    score: float | None = None
    """SOL score of the best passed solution: 0.5 at the baseline, 1 at the bound."""
    since_gain: int = 0
    """Evaluations since the last one that was better than all earlier ones."""
    recent_gain: float = 0.0
    """ln of the speed-up gained over the last `stale_after` evaluations."""
    gains: int = 0
    """Number of gains so far. It is 0 in decisions that were recorded before the field existed; so is `half_gain`."""
    half_gain: float = 0.0
    """ln of the speed-up gained over the last half of the evaluations."""
    cost_s: float = 0.0
    """Seconds of judging and building spent on it."""
    elsewhere: int = 0
    """Evaluations on other problems since the last one on this."""


class WorkerFacts(StrictModel):
    """State of one worker."""

    worker: str
    stint: int = 0
    """Its evaluations on its present problem since it came there."""
    finished: dict[str, FinishReason] = Field(default_factory=dict)
    """Problem -> reason why the worker ended its work on it."""


class PolicyInputs(StrictModel):
    """Everything that a decision depends on, recorded with it."""

    problems: tuple[ProblemFacts, ...]
    workers: tuple[WorkerFacts, ...]
    assignments: tuple[Assignment, ...] = ()
    """The present table."""
    policy: PolicyConfig = PolicyConfig()


class Decision(StrictModel):
    """The new table, and a reason of one line for each worker that the policy placed."""

    assignments: tuple[Assignment, ...]
    reasons: dict[str, str]


def mean_cost_s(problems: Sequence[ProblemFacts]) -> float:
    """Return the mean seconds of building and judging of one evaluation; 0 before the first."""
    evaluations = sum(facts.evaluations for facts in problems)
    return sum(facts.cost_s for facts in problems) / evaluations if evaluations else 0.0
