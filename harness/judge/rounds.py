"""Judging one workload: correctness rounds, then blocks against the baseline until the interval is narrow enough.

To the runner all of it is one kind of thing: batches of calls on the workload's own shapes. It cannot tell a
correctness round from a timed one, nor a stress set from an ordinary one until it has its values.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from harness.judge.clock import Pace, per_call_ns
from harness.judge.devices import Memory
from harness.judge.reference import Value
from harness.judge.runners import RunnerFailed
from harness.judge.sides import Side
from harness.judge.timing import Block, Match, block, kept
from harness.model.interval import FIRST_BLOCKS, blocks_needed
from harness.model.verdict import Verdict

ORDINARY_ROUNDS = 10
LEAST_BATCH_S = 2.0
SLOWER_THAN_BASELINE = 50.0
"""A candidate so many times slower than the baseline is stopped."""
_SINGLES = 5
_BATCHED_GAIN = 1.5
"""A call in a batch so many times cheaper than a call alone was not made alone."""
_CORRECTNESS_BATCH = 8
_SECOND_STRESS_CHANCE = 3


@dataclass(frozen=True)
class Outcome:
    """What checking one call's outputs found. `reason` is None when they are right."""

    verdict: Verdict
    reason: str | None
    max_abs_error: float
    max_rel_error: float
    matched: float


class Sets(Protocol):
    """Where a workload's inputs come from."""

    def refill(self, into: Mapping[str, torch.Tensor], kind: str = "") -> None:
        """Overwrite one set with fresh inputs, ordinary or of a stress case: never the same twice."""

    def stress(self) -> Sequence[str]:
        """Names of the stress cases: awkward inputs of the same shapes."""


class Checker(Protocol):
    """The reference and the tolerance of one workload."""

    def expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """What the reference makes of these inputs."""

    def check(
        self,
        inputs: Sequence[Value],
        expected: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        kind: str = "",
    ) -> Outcome:
        """Compare in full; `kind` names the stress case of the inputs."""


@dataclass
class Tally:
    """What was checked so far."""

    checked: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    matched: float = 1.0

    def add(self, outcome: Outcome) -> None:
        """Count one call."""
        self.checked += 1
        self.max_abs_error = max(self.max_abs_error, outcome.max_abs_error)
        self.max_rel_error = max(self.max_rel_error, outcome.max_rel_error)
        self.matched = min(self.matched, outcome.matched)


@dataclass(frozen=True)
class Timed:
    """What timing one workload found."""

    blocks: tuple[Block, ...]
    discarded: int
    calls: int
    """Of one batch."""
    pace: Pace


@dataclass
class Rounds:
    """One workload with its candidate and its baseline."""

    memory: Memory
    sets: Sets
    checker: Checker
    baseline: Side
    candidate: Side
    deadline: float
    """time.monotonic at which judging gives up."""
    tally: Tally = field(default_factory=Tally)

    def correctness(self) -> None:
        """Ordinary and stress sets, shuffled, in batches of several sizes.

        Raises:
            RunnerFailed: the candidate is wrong or broke.
        """
        kinds = [""] * (ORDINARY_ROUNDS - 1) + list(self.sets.stress())
        secrets.SystemRandom().shuffle(kinds)
        kinds.insert(0, "")  # what is usual is seen first
        first = True
        while kinds:
            size = 1 if first else min(len(kinds), self.memory.capacity, 1 + secrets.randbelow(_CORRECTNESS_BATCH))
            now, kinds = kinds[:size], kinds[size:]
            self._checked_batch(now, self.candidate.first_call_s if first else self._patience(size))
            first = False

    def _checked_batch(self, kinds: Sequence[str], within_s: float) -> None:
        for slot, kind in enumerate(kinds):
            self.sets.refill(self.memory.views(slot), kind)
        self.candidate.batch(self.memory, range(len(kinds)), within_s)
        for slot, kind in enumerate(kinds):
            self._check_slot(slot, kind)

    def _check_slot(self, slot: int, kind: str = "") -> None:
        inputs = self.memory.inputs(slot)
        expected = self.checker.expected(inputs)
        self._judge(inputs, expected, slot, kind)

    def _judge(self, inputs: Sequence[Value], expected: Mapping[str, torch.Tensor], slot: int, kind: str) -> None:
        outcome = self.checker.check(inputs, expected, self.memory.outputs(self.candidate.runner, slot), kind)
        if outcome.reason is not None:
            told = f"{outcome.reason} (inputs: {kind})" if kind else outcome.reason
            raise RunnerFailed(outcome.verdict, told)
        self.tally.add(outcome)

    def _patience(self, calls: int) -> float:
        """How long a batch of the candidate may take: by the baseline's time, and within the deadline."""
        estimate = max(LEAST_BATCH_S, SLOWER_THAN_BASELINE * calls * self._baseline_ns / 1e9)
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise RunnerFailed(Verdict.TIMEOUT, "judging took longer than max_judge_s allows")
        return min(estimate, left)

    _baseline_ns: float = 0.0

    def _fill(self, calls: int) -> None:
        for slot in range(calls):
            self.sets.refill(self.memory.views(slot))

    def look_at_baseline(self) -> None:
        """Warm the baseline up and see how long its calls take. Its failures are the judge's to explain."""
        calibration = self.baseline.device.calibration
        self._fill(1)
        self.baseline.batch(self.memory, range(1), self.baseline.first_call_s)
        times = [self.baseline.batch(self.memory, range(1), LEAST_BATCH_S * 10) for _ in range(3)]
        self._baseline_ns = min(per_call_ns(batch, 1, calibration) for batch in times)

    def pace(self) -> tuple[Pace, float]:
        """Both sides' nanoseconds a call in a batch of several, and the candidate's alone, all checked."""
        calibration = self.candidate.device.calibration
        alone = []
        for _ in range(_SINGLES):
            self._fill(1)
            alone.append(per_call_ns(self.candidate.batch(self.memory, range(1), self._patience(1)), 1, calibration))
            self._check_slot(0)
        single = statistics.median(alone)
        first = Pace(self._baseline_ns, single)
        calls = max(1, min(first.calls(self.memory.capacity), 64))
        self._fill(calls)
        batch = self.candidate.batch(self.memory, range(calls), self._patience(calls))
        for slot in range(calls):
            self._check_slot(slot)
        many = self.baseline.batch(self.memory, range(calls), self._patience(calls) * SLOWER_THAN_BASELINE)
        return Pace(per_call_ns(many, calls, calibration), per_call_ns(batch, calls, calibration)), single

    def time(self, half_width: float, cap_s: float) -> Timed:
        """Blocks until the interval is narrow enough, the cap is reached, or the deadline.

        Raises:
            RunnerFailed: the candidate was wrong or broke, in or between timed batches.
        """
        pace, single = self.pace()
        calls = pace.calls(self.memory.capacity)
        patience = self._patience(calls)
        match = Match(self.baseline, self.candidate, self.memory, calls, patience * SLOWER_THAN_BASELINE, patience)
        end = time.monotonic() + cap_s
        blocks: list[Block] = []
        while True:
            blocks.append(block(match, self._fill, self._check_both))
            self._patience(calls)
            if len(blocks) % _SECOND_STRESS_CHANCE == 0 and not secrets.randbelow(_SECOND_STRESS_CHANCE):
                self._some_stress()
            clean = [each for each in blocks if not each.spoiled]
            ratios = [each.log_ratio for each in clean]
            if len(clean) >= blocks_needed(ratios, half_width):
                break
            if time.monotonic() > end and len(blocks) >= FIRST_BLOCKS:
                break
        self._some_stress()
        counted = kept(blocks, FIRST_BLOCKS)
        self._alone_and_together(single, counted)
        return Timed(tuple(counted), len(blocks) - len(counted), calls, pace)

    def _some_stress(self) -> None:
        """Awkward inputs again, between timed batches or after them, among ordinary ones."""
        stress = list(self.sets.stress())
        chosen = secrets.SystemRandom().sample(stress, min(2, len(stress)))
        kinds = [*chosen, ""][: self.memory.capacity]
        secrets.SystemRandom().shuffle(kinds)
        self._checked_batch(kinds, self._patience(len(kinds)))

    def _check_both(self, slots: range) -> None:
        """Every output of the candidate in full; of the baseline one, drawn now, in a trusted one, else every one."""
        audited = {secrets.choice(slots)} if self.baseline.trusted else set(slots)
        for slot in slots:
            inputs = self.memory.inputs(slot)
            expected = self.checker.expected(inputs)
            self._judge(inputs, expected, slot, "")
            if slot in audited:
                outcome = self.checker.check(inputs, expected, self.memory.outputs(self.baseline.runner, slot))
                if outcome.reason is not None:
                    raise BaselineFailed(outcome.reason)

    def _alone_and_together(self, single_ns: float, blocks: Sequence[Block]) -> None:
        """A call alone and a call among many must cost the same, to within what the handshake's noise explains."""
        calibration = self.candidate.device.calibration
        together = math.exp(statistics.fmean(math.log(each.candidate_ns) for each in blocks))
        if single_ns > _BATCHED_GAIN * together + calibration.handshake_ns:
            raise RunnerFailed(
                Verdict.SUSPECT,
                f"a call alone takes {single_ns / 1e3:.1f} us, a call in a batch {together / 1e3:.1f} us: "
                "calls are not made one by one",
            )


class BaselineFailed(Exception):  # noqa: N818 - the problem's fault, not the candidate's
    """A baseline gave a wrong answer or broke."""
