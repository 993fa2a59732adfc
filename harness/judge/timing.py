"""Timed blocks: batches of baseline and candidate in the order A B B A on fresh inputs, and the ratio of their times.

Both sides of a block get the same inputs, so the expected outputs are computed once. The two halves of a block have
different inputs, so no side gets a set of inputs twice.
"""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.judge.clock import counted_call_ns, disturbed, subtracted_ns
from harness.judge.devices.interface import Batch, Clock, Memory, Reading
from harness.judge.sides import Side
from harness.judge.stages import timed_as
from harness.model.interval import geometric_mean
from harness.model.judging import JudgeStage
from harness.model.verdict import Trust

_LAUNCH_BOUND_WIDER = 4.0
"""Factor of the half-width for launch-bound calls. The last half percent of such a call is noise of the host; measuring
it more precisely takes seconds and shows nothing about the kernel."""

_NORMAL_QUANTILE = 1.96
"""Half-width of a 95 % interval of the normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Block:
    """Times of one block."""

    baseline_ns: float
    """Nanoseconds per call of the baseline: geometric mean of its two batches."""
    candidate_ns: float
    """Nanoseconds per call of the candidate: geometric mean of its two batches."""
    claimed_ns: float
    """Nanoseconds per call of the candidate by its own clock, which is not trusted."""
    disturbed_share: float
    """Share of its most disturbed batch that other processes took."""
    spoiled: bool
    """True if a batch was disturbed too much for the block to count."""
    subtracted_ns: float = 0.0
    """Overhead that was subtracted from a call of the candidate: mean of its two batches."""
    readings: tuple[tuple[tuple[Reading, ...], ...], ...] = ()
    """Readings of each batch, for baseline and candidate, where calls are timed one by one."""
    checked: int = 0
    """Calls of the candidate whose outputs were checked."""

    @property
    def log_ratio(self) -> float:
        """ln(baseline / candidate)."""
        return math.log(self.baseline_ns / self.candidate_ns)


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


@dataclass(frozen=True)
class TimedSide:
    """One side of a race: its calls per batch, and the seconds that a batch may take."""

    side: Side
    calls: int
    within_s: float


@dataclass(frozen=True)
class Race:
    """Baseline and candidate, prepared for the same workload."""

    baseline: TimedSide
    candidate: TimedSide
    memory: Memory

    @property
    def sets(self) -> int:
        """Number of sets of inputs for one half of a block; a side with fewer calls uses the first of them."""
        return max(self.baseline.calls, self.candidate.calls)


def run_block(race: Race, fill: Callable[[int], None], check: Callable[[Race], int]) -> Block:
    """Run one block and return its times.

    Args:
        race: both sides.
        fill: writes fresh inputs into slots 0 to n - 1.
        check: checks the outputs of both sides and returns how many of the candidate's; raises if they are wrong.

    Raises:
        RunnerFailed: a side failed.
    """
    order = secrets.choice(((0, 1, 1, 0), (1, 0, 0, 1)))
    sides = (race.baseline, race.candidate)
    clock = race.candidate.side.clock
    batches: tuple[list[Batch], list[Batch]] = ([], [])
    checked = 0
    for half in (order[:2], order[2:]):
        fill(race.sets)
        with timed_as(JudgeStage.WAIT), clock.hardware.timing():
            for index in half:
                timed = sides[index]
                batches[index].append(timed.side.batch(race.memory, range(timed.calls), timed.within_s))
        checked += check(race)
    calibration = clock.calibration
    baseline_ns, candidate_ns = (
        geometric_mean(counted_call_ns(batch, timed.calls, calibration) for batch in of_side)
        for timed, of_side in zip(sides, batches, strict=True)
    )
    calls, of_candidate = race.candidate.calls, batches[1]
    of_both = [*batches[0], *batches[1]]
    return Block(
        baseline_ns=baseline_ns,
        candidate_ns=candidate_ns,
        claimed_ns=sum(batch.claimed_ns for batch in of_candidate) / (2 * calls),
        disturbed_share=max(batch.disturbed_ns / batch.ns for batch in of_both),
        spoiled=any(disturbed(batch) for batch in of_both),
        subtracted_ns=statistics.fmean(subtracted_ns(batch, calls, calibration) for batch in of_candidate),
        readings=tuple(tuple(batch.readings for batch in of_side) for of_side in batches),
        checked=checked,
    )


def stopping_half_width(half_width: float, blocks: Sequence[Block], clock: Clock) -> float:
    """Return the half-width of the interval at which timing may stop, without the error of the processes.

    It is wider for launch-bound calls. It is never narrower than half of the half-width that the error of both
    processes alone has: the whole interval would become at most 12 % narrower, sqrt(1 + 1 / 4).

    Args:
        half_width: half-width for other calls, as a share of the speed-up: 0.02 is 2 %.
        blocks: the blocks so far.
        clock: decides whether the calls are launch-bound, and returns the error of its processes.
    """
    latency_ns = statistics.fmean(block.candidate_ns for block in blocks)
    claimed_ns = statistics.fmean(block.claimed_ns for block in blocks)
    wider = _LAUNCH_BOUND_WIDER if clock.trust(latency_ns, claimed_ns) is Trust.LAUNCH_BOUND else 1.0
    baseline_ns = statistics.fmean(block.baseline_ns for block in blocks)
    # A bound as long as the call gives the smallest error: the host's share of the call is not known here.
    processes = math.hypot(*(clock.process_error(call_ns, bound_ns=call_ns) for call_ns in (latency_ns, baseline_ns)))
    return max(half_width * wider, _NORMAL_QUANTILE * processes / 2)


def counted_blocks(blocks: list[Block], fewest: int) -> list[Block]:
    """Return the blocks that count, in order. The choice does not depend on the blocks' durations.

    Args:
        blocks: all blocks.
        fewest: if fewer blocks than this are undisturbed, so many of the least disturbed ones count.
    """
    clean = [block for block in blocks if not block.spoiled]
    if len(clean) >= fewest:
        return clean
    chosen = {id(block) for block in sorted(blocks, key=lambda block: block.disturbed_share)[:fewest]}
    return [block for block in blocks if id(block) in chosen]
