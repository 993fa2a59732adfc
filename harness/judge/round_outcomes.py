"""Outcomes of a workload's rounds: of one checked call, of all checks, and of the timed blocks."""

from __future__ import annotations

from dataclasses import dataclass

from harness.judge.timing import Block
from harness.model.verdict import Verdict


@dataclass(frozen=True)
class CheckOutcome:
    """Result of checking one call's outputs. `reason` is None when they are right."""

    verdict: Verdict
    reason: str | None
    max_abs_error: float
    max_rel_error: float
    matched: float


@dataclass
class Tally:
    """Number of checked calls, and their largest errors."""

    checked: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    matched: float = 1.0

    def add(self, outcome: CheckOutcome) -> None:
        """Add the result of one checked call."""
        self.checked += 1
        self.max_abs_error = max(self.max_abs_error, outcome.max_abs_error)
        self.max_rel_error = max(self.max_rel_error, outcome.max_rel_error)
        self.matched = min(self.matched, outcome.matched)


@dataclass(frozen=True)
class TimedBlocks:
    """Result of timing one workload."""

    blocks: tuple[Block, ...]
    discarded: int
    calls: int
    """Calls of the candidate in all timed batches."""
    checked: int
    """Number of these calls whose outputs were checked."""
    placement_error: float | None
    """See `WorkloadResult`; None where calls are not timed one by one."""
    slowdown_uncertainty: float
    """Log ratio by which the candidate may be slower than its batches show. It is part of the error of processes."""


class BaselineFailed(Exception):  # noqa: N818 - a fault of the problem, not of the candidate
    """A baseline returned wrong outputs or broke."""
