"""Judging of one workload: correctness rounds, then timed blocks until the interval of the speed-up is narrow enough.

A runner receives only batches of calls on the workload's own shapes. It cannot distinguish a correctness round from a
timed one, and can distinguish a stress set from an ordinary one only by its values.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from harness.judge.baseline.slowdown import slowed_by
from harness.judge.checks import Tally, WorkloadCheck
from harness.judge.clock import calls_for, disturbed, per_call_ns, placement_error
from harness.judge.correctness import Comparison
from harness.judge.devices.interface import Memory, T
from harness.judge.reference import Value
from harness.judge.runners import BaselineFailed, RunnerFailed
from harness.judge.sides import Side
from harness.judge.timing import Block, Race, TimedBlocks, TimedSide, counted_blocks, run_block, stopping_half_width
from harness.model.interval import FIRST_BLOCKS, blocks_needed, geometric_mean
from harness.model.timed_checks import ORDINARY_ROUNDS, checked_calls
from harness.model.verdict import Verdict

REPETITIONS = 3
"""Number of undisturbed measurements that must agree before a candidate is accused."""
_MOST_REPETITIONS = 100
LEAST_BATCH_S = 2.0
"""Seconds that any batch may take at least."""
SLOWER_THAN_BASELINE = 50.0
"""A candidate that is slower than the baseline by this factor is stopped."""
_LONG_REFERENCE_S = 0.02
"""A reference that takes longer uses every processor for one call, instead of one processor for each call."""
_SINGLES = 5
"""Batches of one call of each side, in one measurement of single calls."""
_BATCHED_GAIN = 1.5
"""A call in a batch must take at least the time of a single call divided by this factor; else calls were merged."""
_ALIKE = 1.25
"""Both sides get the smaller number of calls per batch if the numbers differ by at most this factor, or are 1 and 2."""
_CORRECTNESS_BATCH = 8
"""Largest batch of a correctness round."""
_STRESS_CHANCE = 6
"""A batch with stress inputs follows a block with a probability of 1 in this number."""


_MOST_GENERATION_S = 300.0
"""Seconds of drawing inputs that do not count as judging time; a judge without an answer counts as hung later than
that (`harness.workspace.judge_client.MARGIN_S`)."""


class Deadline:
    """The time at which judging a candidate stops. Work of the judge that is not the candidate's extends it.

    Args:
        within_s: seconds from now on.
    """

    def __init__(self, within_s: float) -> None:
        self._at = time.monotonic() + within_s
        self._generation_s = 0.0

    def extend(self, seconds: float) -> None:
        """Move the deadline by the duration of other work."""
        self._at += seconds

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """Do not count the time inside this context, in which inputs are drawn; at most five minutes in all."""
        begin = time.monotonic()
        yield
        spent_s = min(time.monotonic() - begin, _MOST_GENERATION_S - self._generation_s)
        self._generation_s += spent_s
        self._at += spent_s

    def remaining_s(self) -> float:
        """Return the seconds that are left.

        Raises:
            RunnerFailed: none is left.
        """
        remaining = self._at - time.monotonic()
        if remaining <= 0:
            raise RunnerFailed(Verdict.TIMEOUT, "judging took longer than max_judge_s allows")
        return remaining


@dataclass
class Rounds:
    """One workload with its candidate and its baseline."""

    memory: Memory
    checker: WorkloadCheck
    baseline: Side
    candidate: Side
    deadline: Deadline
    between_batches: Callable[[], float] = lambda: 0.0
    """Does other work of the judge, and returns the seconds that it took."""
    baseline_alone_ns: Sequence[float] = ()
    """Times per call of the baseline before the candidate's process existed, where they were measured."""
    tally: Tally = field(default_factory=Tally)
    workloads: int = 1
    """Number of the problem's workloads."""
    timed_checks: int = 0
    _baseline_ns: float = 0.0
    _single_call_ns: float = math.inf
    _baseline_single_call_ns: float = math.inf
    _is_long_reference: bool = False

    def correctness(self) -> None:
        """Check ordinary and stress inputs, shuffled, in batches of random sizes.

        Raises:
            RunnerFailed: the candidate is wrong or broke.
        """
        kinds = [""] * (ORDINARY_ROUNDS - 1) + list(self.checker.sets.stress())
        secrets.SystemRandom().shuffle(kinds)
        kinds.insert(0, "")  # the first call has ordinary inputs
        first = True
        while kinds:
            self.between_batches()
            size = 1 if first else min(len(kinds), self.memory.capacity, 1 + secrets.randbelow(_CORRECTNESS_BATCH))
            batch_kinds, kinds = kinds[:size], kinds[size:]
            limit_s = self._batch_limit_s(size, self.candidate.first_call_s if first else LEAST_BATCH_S)
            self._fill(size, batch_kinds)
            self.candidate.batch(self.memory, range(size), limit_s)
            self._check(range(size), batch_kinds)
            first = False

    def _check(self, slots: Sequence[int], kinds: Sequence[str] = ()) -> None:
        """Compare the candidate's outputs in these slots with the reference; `kinds` by slot, ordinary by default."""

        def check_slot(slot: int) -> Comparison:
            inputs = self.memory.inputs(slot)
            outputs = self.memory.outputs(self.candidate.runner, slot)
            return self.checker.check(inputs, self._expected(inputs), outputs, kinds[slot] if kinds else "")

        outcomes = self._for_slots(check_slot, slots)
        self.candidate.runner.check_still_stopped()  # so the outputs have not changed since the clock stopped
        for slot, outcome in zip(slots, outcomes, strict=True):
            self._count(outcome, kinds[slot] if kinds else "")

    def _for_slots(self, work: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Do work for each slot in parallel; one slot at a time if the reference itself uses every processor."""
        return (
            [work(slot) for slot in slots] if self._is_long_reference else self.candidate.device.map_slots(work, slots)
        )

    def _expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """Return the reference's outputs; a long reference gets every processor."""
        begin = time.monotonic()
        with self.candidate.device.all_processors() if self._is_long_reference else contextlib.nullcontext():
            expected = self.checker.expected(inputs)
        self._is_long_reference = self._is_long_reference or time.monotonic() - begin > _LONG_REFERENCE_S
        return expected

    def _count(self, outcome: Comparison, kind: str = "") -> None:
        if outcome.reason is not None:
            reason = f"{outcome.reason} (inputs: {kind})" if kind else outcome.reason
            raise RunnerFailed(outcome.verdict, reason)
        self.tally.add(outcome)

    def _batch_limit_s(self, calls: int, least_s: float = LEAST_BATCH_S) -> float:
        """Return the seconds that a batch of the candidate may take, from the baseline's time and the deadline."""
        estimate_s = max(least_s, SLOWER_THAN_BASELINE * calls * self._baseline_ns / 1e9)
        return min(estimate_s, self.deadline.remaining_s())

    def _fill(self, calls: int, kinds: Sequence[str] = ()) -> None:
        """Write fresh inputs into the first `calls` slots; `kinds` by slot, ordinary by default."""
        with self.deadline.generating():
            views = [self.memory.views(slot) for slot in range(calls)]
            self.checker.sets.fill(views, kinds, self.candidate.device.map_slots)

    def warm_up_baseline(self) -> None:
        """Warm the baseline up, and measure the time of its calls.

        Raises:
            RunnerFailed: the baseline broke.
        """
        calibration = self.baseline.device.calibration
        self._fill(1)
        self.baseline.batch(self.memory, range(1), self.baseline.first_call_s)
        batches = [self.baseline.batch(self.memory, range(1), LEAST_BATCH_S * 10) for _ in range(3)]
        self._baseline_ns = min(per_call_ns(batch, 1, calibration) for batch in batches)

    def time_single_calls(self) -> bool:
        """Time batches of one call of both sides and keep the shortest times. The candidate's outputs are checked.

        Returns:
            True if no other process disturbed the candidate's batches.

        Raises:
            RunnerFailed: a side broke, or the candidate is wrong.
        """
        calibration = self.candidate.device.calibration
        quiet = True
        for _ in range(_SINGLES):
            self._fill(1)
            batch = self.baseline.batch(self.memory, range(1), self._batch_limit_s(1) * SLOWER_THAN_BASELINE)
            self._baseline_single_call_ns = min(self._baseline_single_call_ns, per_call_ns(batch, 1, calibration))
            batch = self.candidate.batch(self.memory, range(1), self._batch_limit_s(1))
            self._single_call_ns = min(self._single_call_ns, per_call_ns(batch, 1, calibration))
            quiet = quiet and not disturbed(batch)
            self._check([0])
        return quiet

    def _race(self) -> Race:
        """Prepare both sides, and choose the number of calls of their batches."""
        if self.candidate.device.calibration.separate_calls:
            baseline_calls = self._visit_memory(self.baseline, SLOWER_THAN_BASELINE)
            calls = self._visit_memory(self.candidate, 1.0)
        else:
            self.time_single_calls()
            baseline_calls = self._calls(self.baseline, self._baseline_ns, SLOWER_THAN_BASELINE)
            calls = self._calls(self.candidate, self._single_call_ns, 1.0)
        if max(baseline_calls, calls) <= max(2, _ALIKE * min(baseline_calls, calls)):
            # With equal numbers, the overhead of a batch is divided by the same number of calls on both sides.
            baseline_calls = calls = min(baseline_calls, calls)
        return Race(
            TimedSide(self.baseline, baseline_calls, self._batch_limit_s(baseline_calls) * SLOWER_THAN_BASELINE),
            TimedSide(self.candidate, calls, self._batch_limit_s(calls)),
            self.memory,
        )

    def _visit_memory(self, side: Side, limit_factor: float) -> int:
        """Make a call at every placement that will be timed, so that a side creates data per address now.

        Returns:
            The number of calls of the side's batches, by the shortest time per call.
        """
        calibration, shortest_ns = side.device.calibration, math.inf
        while True:
            usual_calls = calls_for(min(shortest_ns, self._baseline_ns), self.memory.capacity, calibration)
            calls = min(side.device.untried(side.runner), self.memory.capacity) or usual_calls
            self._fill(calls)
            batch = side.batch(self.memory, range(calls), self._batch_limit_s(calls) * limit_factor)
            shortest_ns = min(shortest_ns, per_call_ns(batch, calls, calibration))
            if side is self.candidate:
                self._check(range(calls))
            if not side.device.untried(side.runner):
                return calls_for(shortest_ns, self.memory.capacity, calibration)

    def _calls(self, side: Side, single_call_ns: float, limit_factor: float) -> int:
        """Return the number of calls of a side's batches. Make so many once, so that no timed batch uses new memory."""
        calibration = side.device.calibration
        tried, calls = 0, calls_for(single_call_ns, self.memory.capacity, calibration)
        while tried < calls:
            tried = calls
            self._fill(tried)
            batch = side.batch(self.memory, range(tried), self._batch_limit_s(tried) * limit_factor)
            if side is self.candidate:
                self._check(self._sample(tried))
            # If a call takes longer in a batch than the shortest single call, the batch was disturbed. Its time would
            # make the side's batches shorter, and a side with shorter batches suffers more from a disturbance.
            call_ns = min(single_call_ns, per_call_ns(batch, tried, calibration))
            calls = calls_for(call_ns, self.memory.capacity, calibration)
        return calls

    def time(self, half_width: float, cap_s: float) -> TimedBlocks:
        """Run blocks until the interval is narrow enough or the cap is reached.

        Args:
            half_width: half-width of the 95 % interval at which timing stops, as a share of the speed-up: 0.02 is 2 %.
            cap_s: seconds after which no further block is started, once `FIRST_BLOCKS` blocks have run.

        Raises:
            RunnerFailed: the candidate was wrong or broke in or between timed batches, or the deadline has passed.
            BaselineFailed: the baseline was wrong.
        """
        race = self._race()
        end = time.monotonic() + cap_s
        blocks: list[Block] = []
        self.timed_checks = 0
        while True:
            spent_s = self.between_batches()
            if spent_s:
                end += spent_s
                run_block(race, self._fill, self._check_both)  # not counted: restores the state of caches and clocks
            blocks.append(run_block(race, self._fill, self._check_both))
            self.deadline.remaining_s()
            if not secrets.randbelow(_STRESS_CHANCE):
                self._stress_batch(race.candidate.calls)
            clean = [block.log_ratio for block in blocks if not block.spoiled]
            if len(clean) >= blocks_needed(clean, stopping_half_width(half_width, blocks, self.candidate.device)):
                break
            if time.monotonic() > end and len(blocks) >= FIRST_BLOCKS:
                break
        self._stress_batch(race.candidate.calls)
        self.candidate.device.conclude(self.candidate.runner)
        counted = counted_blocks(blocks, FIRST_BLOCKS)
        slowed = slowed_by(self.baseline_alone_ns, [block.baseline_ns for block in counted])
        slowdown_uncertainty = max(self.compare_single_calls(counted), slowed)
        calls, separate = race.candidate.calls, self.candidate.device.calibration.separate_calls
        sides = (0, 1) if separate else ()
        readings = [[batch for block in counted for batch in block.readings[side]] for side in sides]
        return TimedBlocks(
            blocks=tuple(counted),
            discarded=len(blocks) - len(counted),
            calls=2 * calls * len(blocks),
            checked=self.timed_checks,
            placement_error=placement_error(readings) if separate else None,
            slowdown_uncertainty=slowdown_uncertainty,
        )

    def _stress_batch(self, calls: int) -> None:
        """Check stress inputs between or after timed batches, in a batch that is as long as a timed one."""
        stress = list(self.checker.sets.stress())
        chosen = secrets.SystemRandom().sample(stress, min(2, len(stress), calls))
        kinds = [*chosen, *[""] * (calls - len(chosen))]
        secrets.SystemRandom().shuffle(kinds)
        self._fill(calls, kinds)
        self.candidate.batch(self.memory, range(calls), self._batch_limit_s(calls))
        stressed = {slot for slot, kind in enumerate(kinds) if kind}
        self._check(sorted(stressed | {secrets.randbelow(calls)}), kinds)

    def _sample(self, calls: int) -> list[int]:
        """Return the slots of a batch that are checked: all where calls are separate, or a random sample.

        The sample is drawn after the clock has stopped, so that a candidate cannot predict it during the batch.
        """
        separate = self.candidate.device.calibration.separate_calls
        checked = calls if separate else min(calls, checked_calls(self.workloads))
        return secrets.SystemRandom().sample(range(calls), checked)

    def _check_both(self, race: Race) -> None:
        """Check outputs of both sides: of a trusted baseline those of one slot, of another baseline a sample."""
        calls = race.baseline.calls
        candidate_slots = set(self._sample(race.candidate.calls))
        baseline_slots = {min(candidate_slots)} if self.baseline.trusted else set(self._sample(calls))
        baseline_slots = {slot for slot in baseline_slots if slot < calls} or {secrets.randbelow(calls)}

        def check_slot(slot: int) -> tuple[Comparison | None, Comparison | None]:
            inputs = self.memory.inputs(slot)
            expected = self._expected(inputs)
            of_candidate, of_baseline = (
                self.checker.check(inputs, expected, self.memory.outputs(side.runner, slot)) if slot in slots else None
                for side, slots in ((self.candidate, candidate_slots), (self.baseline, baseline_slots))
            )
            return of_candidate, of_baseline

        outcomes = self._for_slots(check_slot, sorted(candidate_slots | baseline_slots))
        self.candidate.runner.check_still_stopped()  # so the outputs have not changed since the clock stopped
        for of_candidate, of_baseline in outcomes:
            if of_candidate is not None:
                self._count(of_candidate)
                self.timed_checks += 1
            if of_baseline is not None and of_baseline.reason is not None:
                raise BaselineFailed(of_baseline.reason)

    def compare_single_calls(self, blocks: Sequence[Block]) -> float:
        """Check that a single call costs no more than a call in a batch, apart from the cost of waking a runner.

        That cost is the handshake, and the difference between a single call of the baseline and its calls in batches:
        in single calls, its code and data are as cold as the candidate's. Nothing is checked where calls are timed one
        by one.

        Returns:
            ln(single call / call in a batch) if the difference is too large and the machine was too rarely quiet for
            an accusation, else 0.0.

        Raises:
            RunnerFailed: the difference is too large in `REPETITIONS` undisturbed repetitions.
        """
        if self.candidate.device.calibration.separate_calls:
            return 0.0
        batched_ns = geometric_mean([block.candidate_ns for block in blocks])
        baseline_batched_ns = geometric_mean([block.baseline_ns for block in blocks])
        quiet = 0
        for _ in range(_MOST_REPETITIONS):
            baseline_excess_ns = max(0.0, self._baseline_single_call_ns - baseline_batched_ns)
            waking_ns = self.candidate.device.calibration.handshake_ns + baseline_excess_ns
            if self._single_call_ns <= _BATCHED_GAIN * batched_ns + waking_ns:
                return 0.0
            if quiet == REPETITIONS:
                break
            quiet += self.time_single_calls()
        if quiet < REPETITIONS:
            return math.log((self._single_call_ns - waking_ns) / batched_ns)
        raise RunnerFailed(
            Verdict.SUSPECT,
            f"a call alone takes {self._single_call_ns / 1e3:.1f} us, a call in a batch {batched_ns / 1e3:.1f} us: "
            "calls are not made one by one",
        )
