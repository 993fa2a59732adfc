"""Judging one workload: correctness rounds, then blocks against the baseline until the interval is narrow enough.

To the runner all of it is one kind of thing: batches of calls on the workload's own shapes. It cannot tell a
correctness round from a timed one, nor a stress set from an ordinary one until it has its values.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from harness.judge.baseline.slowdown import slowed_by
from harness.judge.clock import calls_for, disturbed, per_call_ns
from harness.judge.devices.interface import Calibration, Memory, T
from harness.judge.placement_error import placement_error
from harness.judge.reference import Value
from harness.judge.runners import RunnerFailed
from harness.judge.sides import Side
from harness.judge.timing import Block, Entrant, Match, block, kept, wanted_width
from harness.model.geometric_mean import geometric_mean
from harness.model.interval import FIRST_BLOCKS, blocks_needed
from harness.model.verdict import Verdict

ORDINARY_ROUNDS = 10
REPETITIONS = 3
"""An accusation needs the same evidence so many times, while nothing else disturbs the machine."""
_MOST_REPETITIONS = 100
LEAST_BATCH_S = 2.0
SLOWER_THAN_BASELINE = 50.0
"""A candidate so many times slower than the baseline is stopped."""
_LONG_REFERENCE_S = 0.02
_SINGLES = 5
_CHECKED = 11
"""Calls of a batch; a shorter batch is checked whole. Twelve blocks of batches this long have 264."""
_BATCHED_GAIN = 1.5
"""A call in a batch so many times cheaper than a call alone was not made alone."""
_ALIKE = 1.25
"""Sides whose batches would have nearly as many calls have as many; one and two are nearly as many, too."""
_CORRECTNESS_BATCH = 8
_STRESS_CHANCE = 6
"""After one block in so many, awkward inputs come again."""


@dataclass(frozen=True)
class CheckOutcome:
    """Result of checking one call's outputs. `reason` is None when they are right."""

    verdict: Verdict
    reason: str | None
    max_abs_error: float
    max_rel_error: float
    matched: float


Views = Mapping[str, torch.Tensor]
"""A set's inputs by name, to be written in place."""
Each = Callable[[Callable[[int], None], Sequence[int]], object]
"""Does something for each of several numbers, in threads perhaps."""


class InputSets(Protocol):
    """Where a workload's inputs come from."""

    def fill(self, sets: Sequence[Views], kinds: Sequence[str] = (), each: Each | None = None) -> None:
        """Overwrite sets with fresh inputs, never the same twice.

        Args:
            sets: which.
            kinds: by set: the name of a stress case, or nothing for ordinary inputs, which all are by default.
            each: makes several sets at a time; without it one is made after the other.
        """

    def stress(self) -> Sequence[str]:
        """Names of the stress cases: awkward inputs of the same shapes."""


class Checker(Protocol):
    """The reference and the tolerance of one workload."""

    def expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """The reference's outputs for these inputs."""

    def check(
        self,
        inputs: Sequence[Value],
        expected: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        kind: str = "",
    ) -> CheckOutcome:
        """Compare in full; `kind` names the stress case of the inputs."""


@dataclass
class Tally:
    """Calls checked so far, and their errors."""

    checked: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    matched: float = 1.0

    def add(self, outcome: CheckOutcome) -> None:
        """Count one call."""
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
    """Of the candidate, in all timed batches."""
    checked: int
    """Of these, checked in full."""
    placement_error: float | None
    """See `WorkloadResult`; None where calls are not timed one by one."""
    doubt: float
    """Log ratio by which the candidate may be slower than its batches say; part of the error of processes."""


@dataclass
class Rounds:
    """One workload with its candidate and its baseline."""

    memory: Memory
    sets: InputSets
    checker: Checker
    baseline: Side
    candidate: Side
    deadline: float
    """time.monotonic at which judging gives up."""
    between: Callable[[], float] = lambda: 0.0
    """Other work of the judge, between two batches; seconds that it took, which are not the candidate's."""
    baseline_alone_ns: Sequence[float] = ()
    """Times per call of the baseline before the candidate's process existed, where that was measured."""
    tally: Tally = field(default_factory=Tally)
    timed_checks: int = 0
    _baseline_ns: float = 0.0
    _alone_ns: float = math.inf
    _baseline_alone_ns: float = math.inf
    _long: bool = False

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
            self._work_between()
            size = 1 if first else min(len(kinds), self.memory.capacity, 1 + secrets.randbelow(_CORRECTNESS_BATCH))
            now, kinds = kinds[:size], kinds[size:]
            self._checked_batch(now, self._patience(size, self.candidate.first_call_s if first else LEAST_BATCH_S))
            first = False

    def _work_between(self) -> float:
        """Let the judge do what waits; seconds that it took."""
        spent_s = self.between()
        self.deadline += spent_s
        return spent_s

    def _checked_batch(self, kinds: Sequence[str], within_s: float) -> None:
        self._fill(len(kinds), kinds)
        self.candidate.batch(self.memory, range(len(kinds)), within_s)
        self._check(range(len(kinds)), kinds)

    def _check(self, slots: Sequence[int], kinds: Sequence[str] = ()) -> None:
        """Hold the candidate's outputs in these slots against the reference; `kinds` by slot, ordinary by default."""

        def look(slot: int) -> CheckOutcome:
            inputs = self.memory.inputs(slot)
            outputs = self.memory.outputs(self.candidate.runner, slot)
            return self.checker.check(inputs, self._expected(inputs), outputs, kinds[slot] if kinds else "")

        outcomes = self._each(look, slots)
        self.candidate.runner.check_still_stopped()  # so the outputs are what they were when the clock stopped
        for slot, outcome in zip(slots, outcomes, strict=True):
            self._take_in(outcome, kinds[slot] if kinds else "")

    def _each(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """On every processor; a reference that takes long uses them all by itself."""
        return [work(slot) for slot in slots] if self._long else self.candidate.device.map_slots(work, slots)

    def _expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """The reference's outputs; a reference that takes long gets every processor."""
        begin = time.monotonic()
        with self.candidate.device.all_processors() if self._long else contextlib.nullcontext():
            expected = self.checker.expected(inputs)
        self._long = self._long or time.monotonic() - begin > _LONG_REFERENCE_S
        return expected

    def _take_in(self, outcome: CheckOutcome, kind: str = "") -> None:
        if outcome.reason is not None:
            told = f"{outcome.reason} (inputs: {kind})" if kind else outcome.reason
            raise RunnerFailed(outcome.verdict, told)
        self.tally.add(outcome)

    def _patience(self, calls: int, least_s: float = LEAST_BATCH_S) -> float:
        """Seconds that a batch of the candidate may take: by the baseline's time, and within the deadline."""
        estimate = max(least_s, SLOWER_THAN_BASELINE * calls * self._baseline_ns / 1e9)
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise RunnerFailed(Verdict.TIMEOUT, "judging took longer than max_judge_s allows")
        return min(estimate, left)

    def _fill(self, calls: int, kinds: Sequence[str] = ()) -> None:
        """Fresh inputs in so many slots; `kinds` by slot, ordinary by default."""
        self.sets.fill([self.memory.views(slot) for slot in range(calls)], kinds, self.candidate.device.map_slots)

    def look_at_baseline(self) -> None:
        """Warm the baseline up and see how long its calls take. Its failures are the judge's to explain."""
        calibration = self.baseline.device.calibration
        self._fill(1)
        self.baseline.batch(self.memory, range(1), self.baseline.first_call_s)
        times = [self.baseline.batch(self.memory, range(1), LEAST_BATCH_S * 10) for _ in range(3)]
        self._baseline_ns = min(per_call_ns(batch, 1, calibration) for batch in times)

    def time_alone(self) -> bool:
        """Batches of one, of both sides, the candidate's checked like any other; the quickest are remembered.

        Returns:
            Whether nothing outside disturbed the candidate's.
        """
        calibration = self.candidate.device.calibration
        quiet = True
        for _ in range(_SINGLES):
            self._fill(1)
            batch = self.baseline.batch(self.memory, range(1), self._patience(1) * SLOWER_THAN_BASELINE)
            self._baseline_alone_ns = min(self._baseline_alone_ns, per_call_ns(batch, 1, calibration))
            batch = self.candidate.batch(self.memory, range(1), self._patience(1))
            self._alone_ns = min(self._alone_ns, per_call_ns(batch, 1, calibration))
            quiet = quiet and not disturbed(batch)
            self._check([0])
        return quiet

    def _match(self) -> Match:
        """Prepare both sides, and choose the number of calls of their batches."""
        self._visit_memory(self.baseline, SLOWER_THAN_BASELINE)
        self._visit_memory(self.candidate, 1.0)
        self.time_alone()
        theirs = self._calls(self.baseline, self._baseline_ns, SLOWER_THAN_BASELINE)
        calls = self._calls(self.candidate, self._alone_ns, 1.0)
        if max(theirs, calls) <= max(2, _ALIKE * min(theirs, calls)):
            theirs = calls = min(theirs, calls)  # what a batch costs once then falls on as many calls of either
        return Match(
            Entrant(self.baseline, theirs, self._patience(theirs) * SLOWER_THAN_BASELINE),
            Entrant(self.candidate, calls, self._patience(calls)),
            self.memory,
        )

    def _visit_memory(self, side: Side, patience: float) -> None:
        """Make a call at every place where a side will be timed: what it keeps by address is made now, untimed."""
        while left := side.device.untried(side.runner):
            calls = min(left, self.memory.capacity)
            self._fill(calls)
            side.batch(self.memory, range(calls), self._patience(calls) * patience)
            if side is self.candidate:
                self._check(range(calls))

    def _calls(self, side: Side, alone_ns: float, patience: float) -> int:
        """Number of calls of a side's batches. It has made as many once, so that no timed batch uses new memory."""
        calibration = side.device.calibration
        made, calls = 0, calls_for(alone_ns, self.memory.capacity, calibration)
        while made < calls:
            made = calls
            self._fill(made)
            batch = side.batch(self.memory, range(made), self._patience(made) * patience)
            if side is self.candidate:
                self._check(self._sample(made))
            # A call that seems to take longer in a batch than alone (the quickest of several) was disturbed; and if one
            # side's batches are shorter, it suffers more from what disturbs both.
            one = min(alone_ns, per_call_ns(batch, made, calibration))
            calls = calls_for(one, self.memory.capacity, calibration)
        return calls

    def time(self, half_width: float, cap_s: float) -> TimedBlocks:
        """Blocks until the interval is narrow enough, the cap is reached, or the deadline.

        Raises:
            RunnerFailed: the candidate was wrong or broke, in or between timed batches.
        """
        match = self._match()
        end = time.monotonic() + cap_s
        blocks: list[Block] = []
        self.timed_checks = 0
        while True:
            spent_s = self._work_between()
            if spent_s:
                end += spent_s
                block(match, self._fill, self._check_both)  # not counted: caches and clocks are as they were before it
            blocks.append(block(match, self._fill, self._check_both))
            self._patience(1)
            if not secrets.randbelow(_STRESS_CHANCE):
                self._some_stress(match.candidate.calls)
            clean = [each.log_ratio for each in blocks if not each.spoiled]
            if len(clean) >= blocks_needed(clean, wanted_width(half_width, blocks, self.candidate.device)):
                break
            if time.monotonic() > end and len(blocks) >= FIRST_BLOCKS:
                break
        self._some_stress(match.candidate.calls)
        self.candidate.device.conclude(self.candidate.runner)
        counted = kept(blocks, FIRST_BLOCKS)
        slowed = slowed_by(self.baseline_alone_ns, [each.baseline_ns for each in counted])
        doubt = max(self.compare_alone(counted), slowed)
        calls = match.candidate.calls
        return TimedBlocks(
            blocks=tuple(counted),
            discarded=len(blocks) - len(counted),
            calls=2 * calls * len(blocks),
            checked=self.timed_checks,
            placement_error=_placement_error(counted, self.candidate.device.calibration),
            doubt=doubt,
        )

    def _some_stress(self, calls: int) -> None:
        """Awkward inputs again, between timed batches or after them, in a batch that is as long as a timed one."""
        stress = list(self.sets.stress())
        chosen = secrets.SystemRandom().sample(stress, min(2, len(stress), calls))
        kinds = [*chosen, *[""] * (calls - len(chosen))]
        secrets.SystemRandom().shuffle(kinds)
        self._fill(calls, kinds)
        self.candidate.batch(self.memory, range(calls), self._patience(calls))
        awkward = {slot for slot, kind in enumerate(kinds) if kind}
        self._check(sorted(awkward | {secrets.randbelow(calls)}), kinds)

    def _sample(self, calls: int) -> list[int]:
        """Calls of a batch that are checked: all, or of a long batch some.

        Drawn when the clock has stopped: nobody can know which while there is something to gain.
        """
        if calls <= _CHECKED:
            return list(range(calls))
        return secrets.SystemRandom().sample(range(calls), _CHECKED)

    def _check_both(self, match: Match) -> None:
        """The candidate's outputs, and the baseline's: one of a trusted one, else as many as the candidate's."""
        theirs = match.baseline.calls
        own = set(self._sample(match.candidate.calls))
        audited = {min(own)} if self.baseline.trusted else set(self._sample(theirs))
        audited = {slot for slot in audited if slot < theirs} or {secrets.randbelow(theirs)}

        def look(slot: int) -> tuple[CheckOutcome | None, CheckOutcome | None]:
            inputs = self.memory.inputs(slot)
            expected = self._expected(inputs)
            mine, yours = (
                self.checker.check(inputs, expected, self.memory.outputs(side.runner, slot)) if slot in its else None
                for side, its in ((self.candidate, own), (self.baseline, audited))
            )
            return mine, yours

        outcomes = self._each(look, sorted(own | audited))
        self.candidate.runner.check_still_stopped()  # so the outputs are what they were when the clock stopped
        for mine, yours in outcomes:
            if mine is not None:
                self._take_in(mine)
                self.timed_checks += 1
            if yours is not None and yours.reason is not None:
                raise BaselineFailed(yours.reason)

    def compare_alone(self, blocks: Sequence[Block]) -> float:
        """A call alone and a call among many must cost the same.

        To within what waking a runner explains: the handshake, and what the baseline's calls cost more alone than among
        many, whose code and data are as cold then as the candidate's. Not needed where calls are timed one by one.

        Returns:
            ln(alone / among many) where it is too large and the machine was never quiet for long enough to accuse
            anybody, else 0.0.

        Raises:
            RunnerFailed: it is too large, in `REPETITIONS` repetitions that nothing else disturbed.
        """
        if self.candidate.device.calibration.separate_calls:
            return 0.0
        together, theirs = (
            geometric_mean(times)
            for times in ([each.candidate_ns for each in blocks], [each.baseline_ns for each in blocks])
        )
        quiet = 0
        for _ in range(_MOST_REPETITIONS):
            waking = self.candidate.device.calibration.handshake_ns + max(0.0, self._baseline_alone_ns - theirs)
            if self._alone_ns <= _BATCHED_GAIN * together + waking:
                return 0.0
            if quiet == REPETITIONS:
                break
            quiet += self.time_alone()
        if quiet < REPETITIONS:
            return math.log((self._alone_ns - waking) / together)
        raise RunnerFailed(
            Verdict.SUSPECT,
            f"a call alone takes {self._alone_ns / 1e3:.1f} us, a call in a batch {together / 1e3:.1f} us: "
            "calls are not made one by one",
        )


def _placement_error(blocks: Sequence[Block], calibration: Calibration) -> float | None:
    if not calibration.separate_calls:
        return None
    return placement_error([[batch for block in blocks for batch in block.readings[side]] for side in (0, 1)])


class BaselineFailed(Exception):  # noqa: N818 - the problem's fault, not the candidate's
    """A baseline gave a wrong answer or broke."""
