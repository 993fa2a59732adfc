"""Judging of one workload: correctness rounds, then timed blocks until the interval of the speed-up is narrow enough.

A runner receives only batches of calls on the workload's own shapes. It cannot distinguish a correctness round from a
timed one, and can distinguish a stress set from an ordinary one only by its values.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.judge.baseline.slowdown import slowed_by
from harness.judge.checked_calls import LEAST_BATCH_S, SLOWER_THAN_BASELINE, CheckedCalls
from harness.judge.clock import calls_for, per_call_ns, placement_error
from harness.judge.sides import Side
from harness.judge.single_calls import SingleCalls
from harness.judge.timing import Block, Race, TimedBlocks, TimedSide, counted_blocks, run_block, stopping_half_width
from harness.model.interval import FIRST_BLOCKS, blocks_needed
from harness.model.timed_checks import ORDINARY_ROUNDS, checked_calls

_ALIKE = 1.25
"""Both sides get the smaller number of calls per batch if the numbers differ by at most this factor, or are 1 and 2."""
_CORRECTNESS_BATCH = 8
"""Largest batch of a correctness round."""
_STRESS_CHANCE = 6
"""A batch with stress inputs follows a block with a probability of 1 in this number."""


@dataclass
class Rounds:
    """One workload with its candidate and its baseline."""

    calls: CheckedCalls
    baseline: Side
    between_batches: Callable[[], float] = lambda: 0.0
    """Does other work of the judge, and returns the seconds that it took."""
    baseline_alone_ns: Sequence[float] = ()
    """Times per call of the baseline before the candidate's process existed, where they were measured."""
    workloads: int = 1
    """Number of the problem's workloads."""

    def correctness(self) -> None:
        """Check ordinary and stress inputs, shuffled, in batches of random sizes.

        Raises:
            RunnerFailed: the candidate is wrong or broke.
        """
        calls, candidate = self.calls, self.calls.candidate
        kinds = [""] * (ORDINARY_ROUNDS - 1) + list(calls.checker.sets.stress())
        secrets.SystemRandom().shuffle(kinds)
        kinds.insert(0, "")  # the first call has ordinary inputs
        first = True
        while kinds:
            self.between_batches()
            largest_batch = min(len(kinds), calls.memory.capacity)
            size = 1 if first else min(largest_batch, 1 + secrets.randbelow(_CORRECTNESS_BATCH))
            batch_kinds, kinds = kinds[:size], kinds[size:]
            limit_s = calls.limit_s(size, candidate.first_call_s if first else LEAST_BATCH_S)
            calls.fill(size, batch_kinds)
            candidate.batch(calls.memory, range(size), limit_s)
            calls.check(range(size), batch_kinds)
            first = False

    def warm_up_baseline(self) -> None:
        """Warm the baseline up, and measure the time of its calls.

        Raises:
            BaselineFailed: the baseline broke.
        """
        calls, calibration = self.calls, self.baseline.clock.calibration
        calls.fill(1)
        self.baseline.batch(calls.memory, range(1), self.baseline.first_call_s)
        batches = [self.baseline.batch(calls.memory, range(1), LEAST_BATCH_S * 10) for _ in range(3)]
        calls.baseline_ns = min(per_call_ns(batch, 1, calibration) for batch in batches)

    def time(self, half_width: float, cap_s: float) -> TimedBlocks:
        """Run blocks until the interval is narrow enough or the cap is reached.

        Args:
            half_width: half-width of the 95 % interval at which timing stops, as a share of the speed-up: 0.02 is 2 %.
            cap_s: seconds after which no further block is started, once `FIRST_BLOCKS` blocks have run.

        Raises:
            RunnerFailed: the candidate was wrong or broke in or between timed batches, or the deadline has passed.
            BaselineFailed: the baseline was wrong or broke.
        """
        clock = self.calls.candidate.clock
        singles = None if clock.separate_calls else SingleCalls(self.calls, self.baseline)
        race = self._race(singles)
        end = time.monotonic() + cap_s
        blocks: list[Block] = []
        while True:
            spent_s = self.between_batches()
            if spent_s:
                end += spent_s
                # Not counted: it restores the state of caches and clocks.
                run_block(race, self.calls.fill, self._check_both)
            blocks.append(run_block(race, self.calls.fill, self._check_both))
            self.calls.deadline.remaining_s()
            if not secrets.randbelow(_STRESS_CHANCE):
                self._stress_batch(race.candidate.calls)
            clean = [block.log_ratio for block in blocks if not block.spoiled]
            if len(clean) >= blocks_needed(clean, stopping_half_width(half_width, blocks, clock)):
                break
            if time.monotonic() > end and len(blocks) >= FIRST_BLOCKS:
                break
        self._stress_batch(race.candidate.calls)
        clock.conclude(self.calls.candidate.connection)
        counted = counted_blocks(blocks, FIRST_BLOCKS)
        slowed = slowed_by(self.baseline_alone_ns, [block.baseline_ns for block in counted])
        merged = singles.compare(counted) if singles is not None else 0.0
        readings = [[batch for block in counted for batch in block.readings[side]] for side in (0, 1) if not singles]
        return TimedBlocks(
            blocks=tuple(counted),
            discarded=len(blocks) - len(counted),
            calls=2 * race.candidate.calls * len(blocks),
            checked=sum(block.checked for block in blocks),
            placement_error=placement_error(readings) if singles is None else None,
            slowdown_uncertainty=max(merged, slowed),
        )

    def _race(self, singles: SingleCalls | None) -> Race:
        """Prepare both sides, and choose the number of calls of their batches."""
        checked, candidate = self.calls, self.calls.candidate
        if singles is None:
            baseline_calls = self._visit_memory(self.baseline, SLOWER_THAN_BASELINE)
            calls = self._visit_memory(candidate, 1.0)
        else:
            singles.measure()
            baseline_calls = self._calls(self.baseline, checked.baseline_ns, SLOWER_THAN_BASELINE)
            calls = self._calls(candidate, singles.candidate_ns, 1.0)
        if max(baseline_calls, calls) <= max(2, _ALIKE * min(baseline_calls, calls)):
            # With equal numbers, the overhead of a batch is divided by the same number of calls on both sides.
            baseline_calls = calls = min(baseline_calls, calls)
        return Race(
            TimedSide(self.baseline, baseline_calls, checked.limit_s(baseline_calls) * SLOWER_THAN_BASELINE),
            TimedSide(candidate, calls, checked.limit_s(calls)),
            checked.memory,
        )

    def _visit_memory(self, side: Side, limit_factor: float) -> int:
        """Make a call at every placement that will be timed, so that a side creates data per address now.

        Returns:
            The number of calls of the side's batches, by the shortest time per call.
        """
        checked, clock, shortest_ns = self.calls, side.clock, math.inf
        capacity = checked.memory.capacity
        while True:
            usual_calls = calls_for(min(shortest_ns, checked.baseline_ns), capacity, clock.calibration)
            calls = min(clock.untried(side.connection), capacity) or usual_calls
            checked.fill(calls)
            batch = side.batch(checked.memory, range(calls), checked.limit_s(calls) * limit_factor)
            shortest_ns = min(shortest_ns, per_call_ns(batch, calls, clock.calibration))
            if side is checked.candidate:
                checked.check(range(calls))
            if not clock.untried(side.connection):
                return calls_for(shortest_ns, capacity, clock.calibration)

    def _calls(self, side: Side, single_call_ns: float, limit_factor: float) -> int:
        """Return the number of calls of a side's batches. Make so many once, so that no timed batch uses new memory."""
        checked, calibration = self.calls, side.clock.calibration
        tried, calls = 0, calls_for(single_call_ns, checked.memory.capacity, calibration)
        while tried < calls:
            tried = calls
            checked.fill(tried)
            batch = side.batch(checked.memory, range(tried), checked.limit_s(tried) * limit_factor)
            if side is checked.candidate:
                checked.check(self._sample(tried))
            # If a call takes longer in a batch than the shortest single call, the batch was disturbed. Its time would
            # make the side's batches shorter, and a side with shorter batches suffers more from a disturbance.
            call_ns = min(single_call_ns, per_call_ns(batch, tried, calibration))
            calls = calls_for(call_ns, checked.memory.capacity, calibration)
        return calls

    def _stress_batch(self, calls: int) -> None:
        """Check stress inputs between or after timed batches, in a batch that is as long as a timed one."""
        stress = list(self.calls.checker.sets.stress())
        chosen = secrets.SystemRandom().sample(stress, min(2, len(stress), calls))
        kinds = [*chosen, *[""] * (calls - len(chosen))]
        secrets.SystemRandom().shuffle(kinds)
        self.calls.fill(calls, kinds)
        self.calls.batch(calls)
        stressed = {slot for slot, kind in enumerate(kinds) if kind}
        self.calls.check(sorted(stressed | {secrets.randbelow(calls)}), kinds)

    def _sample(self, calls: int) -> list[int]:
        """Return the slots of a batch that are checked: all where calls are separate, or a random sample.

        The sample is drawn after the clock has stopped, so that a candidate cannot predict it during the batch.
        """
        separate = self.calls.candidate.clock.separate_calls
        checked = calls if separate else min(calls, checked_calls(self.workloads))
        return secrets.SystemRandom().sample(range(calls), checked)

    def _check_both(self, race: Race) -> int:
        """Check outputs of both sides: of a trusted baseline those of one slot, of another baseline a sample.

        Returns:
            The number of checked calls of the candidate.
        """
        calls = race.baseline.calls
        candidate_slots = set(self._sample(race.candidate.calls))
        baseline_slots = {min(candidate_slots)} if self.baseline.is_trusted else set(self._sample(calls))
        baseline_slots = {slot for slot in baseline_slots if slot < calls} or {secrets.randbelow(calls)}
        return self.calls.check_both(candidate_slots, self.baseline, baseline_slots)
