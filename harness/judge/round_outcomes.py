"""Outcomes of a workload's rounds, and the protocols through which rounds get inputs and have outputs checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.judge.reference import Value
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


Views = Mapping[str, torch.Tensor]
"""Inputs of one set by name, which are written in place."""
ForEachSet = Callable[[Callable[[int], None], Sequence[int]], object]
"""Calls a function for each of several set numbers, possibly in parallel threads."""


class InputSets(Protocol):
    """Source of a workload's inputs."""

    def fill(self, sets: Sequence[Views], kinds: Sequence[str] = (), for_each_set: ForEachSet | None = None) -> None:
        """Overwrite sets with fresh inputs, never the same twice.

        Args:
            sets: the sets to overwrite.
            kinds: name of a stress case for each set, or "" for ordinary inputs; empty: all are ordinary.
            for_each_set: fills several sets in parallel; None: one after the other.
        """

    def stress(self) -> Sequence[str]:
        """Return the names of the stress cases: inputs of the same shapes with difficult values."""


class Checker(Protocol):
    """Check of one workload's outputs against the reference and the tolerance."""

    def expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """Return the reference's outputs for these inputs, by name."""

    def check(
        self,
        inputs: Sequence[Value],
        expected: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        kind: str = "",
    ) -> CheckOutcome:
        """Compare every element of a call's outputs.

        Args:
            inputs: of the call, in declaration order.
            expected: the reference's outputs by name.
            outputs: the candidate's outputs by name.
            kind: stress case of the inputs; "" for ordinary ones.
        """


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
