"""Calls of a candidate on fresh inputs of one workload, with the check of their outputs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from harness.judge.checks import Tally, WorkloadCheck
from harness.judge.correctness import Comparison
from harness.judge.deadline import Deadline
from harness.judge.devices.interface import Batch, Memory, T
from harness.judge.reference import Value
from harness.judge.runners import BaselineFailed, RunnerFailed
from harness.judge.sides import Side

LEAST_BATCH_S = 2.0
"""Seconds that any batch may take at least."""
SLOWER_THAN_BASELINE = 50.0
"""A candidate that is slower than the baseline by this factor is stopped."""
_LONG_REFERENCE_S = 0.02
"""A reference that takes longer uses every processor for one call, instead of one processor for each call."""


@dataclass
class CheckedCalls:
    """The sets of inputs of one workload, and the candidate's calls on them."""

    memory: Memory
    checker: WorkloadCheck
    candidate: Side
    deadline: Deadline
    tally: Tally = field(default_factory=Tally)
    baseline_ns: float = 0.0
    """Time of a call of the baseline, from which the limits of batches follow; 0.0 if it is not known yet."""
    _is_long_reference: bool = False

    def fill(self, calls: int, kinds: Sequence[str] = ()) -> None:
        """Write fresh inputs into the first slots.

        Args:
            calls: number of slots.
            kinds: stress case by slot, "" for ordinary inputs; empty: all are ordinary.
        """
        with self.deadline.generating():
            views = [self.memory.views(slot) for slot in range(calls)]
            self.checker.sets.fill(views, kinds, self.candidate.clock.hardware.map_slots)

    def limit_s(self, calls: int, least_s: float = LEAST_BATCH_S) -> float:
        """Return the seconds that a batch of the candidate may take, from the baseline's time and the deadline.

        Args:
            calls: calls of the batch.
            least_s: seconds that it may take at least.
        """
        estimate_s = max(least_s, SLOWER_THAN_BASELINE * calls * self.baseline_ns / 1e9)
        return min(estimate_s, self.deadline.remaining_s())

    def batch(self, calls: int) -> Batch:
        """Make the candidate's calls on the first slots."""
        return self.candidate.batch(self.memory, range(calls), self.limit_s(calls))

    def check(self, slots: Sequence[int], kinds: Sequence[str] = ()) -> None:
        """Compare the candidate's outputs in these slots with the reference.

        Args:
            slots: numbers of the slots.
            kinds: stress case by slot, as of `fill`.

        Raises:
            RunnerFailed: an output is wrong.
        """

        def check_slot(slot: int) -> Comparison:
            inputs = self.memory.inputs(slot)
            return self._compare(self.candidate, inputs, self._expected(inputs), slot, kinds[slot] if kinds else "")

        outcomes = self._for_slots(check_slot, slots)
        self.candidate.runner.check_still_stopped()  # so the outputs have not changed since the clock stopped
        for slot, outcome in zip(slots, outcomes, strict=True):
            self._count(outcome, kinds[slot] if kinds else "")

    def check_both(self, candidate_slots: set[int], baseline: Side, baseline_slots: set[int]) -> int:
        """Compare outputs of both sides with the reference, and return the number of the candidate's.

        Args:
            candidate_slots: slots of the candidate's outputs.
            baseline: the other side.
            baseline_slots: slots of its outputs.

        Raises:
            RunnerFailed: an output of the candidate is wrong.
            BaselineFailed: an output of the baseline is wrong.
        """

        def check_slot(slot: int) -> tuple[Comparison | None, Comparison | None]:
            inputs = self.memory.inputs(slot)
            expected = self._expected(inputs)
            of_candidate, of_baseline = (
                self._compare(side, inputs, expected, slot) if slot in slots else None
                for side, slots in ((self.candidate, candidate_slots), (baseline, baseline_slots))
            )
            return of_candidate, of_baseline

        outcomes = self._for_slots(check_slot, sorted(candidate_slots | baseline_slots))
        self.candidate.runner.check_still_stopped()  # so the outputs have not changed since the clock stopped
        for of_candidate, of_baseline in outcomes:
            if of_candidate is not None:
                self._count(of_candidate)
            if of_baseline is not None and of_baseline.reason is not None:
                raise BaselineFailed(of_baseline.reason)
        return len(candidate_slots)

    def _compare(
        self, side: Side, inputs: Sequence[Value], expected: dict[str, torch.Tensor], slot: int, kind: str = ""
    ) -> Comparison:
        return self.checker.check(inputs, expected, self.memory.outputs(side.connection, slot), kind)

    def _for_slots(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Do work for each slot in parallel; one slot at a time if the reference itself uses every processor."""
        if self._is_long_reference:
            return [work(slot) for slot in slots]
        return self.candidate.clock.hardware.map_slots(work, slots)

    def _expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """Return the reference's outputs; a long reference gets every processor."""
        begin, hardware = time.monotonic(), self.candidate.clock.hardware
        with hardware.all_processors() if self._is_long_reference else contextlib.nullcontext():
            expected = self.checker.expected(inputs)
        self._is_long_reference = self._is_long_reference or time.monotonic() - begin > _LONG_REFERENCE_S
        return expected

    def _count(self, outcome: Comparison, kind: str = "") -> None:
        if outcome.reason is not None:
            reason = f"{outcome.reason} (inputs: {kind})" if kind else outcome.reason
            raise RunnerFailed(outcome.verdict, reason)
        self.tally.add(outcome)
