"""A B B A: one block of baseline and candidate on fresh inputs, and what it says about their ratio.

Both sides of a block see the same inputs, so the expected outputs are computed once; the two halves of a block have
inputs of their own, so no side ever sees a set twice.
"""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.judge.clock import counted_call_ns, disturbed, subtracted_ns
from harness.judge.devices.interface import Batch, Device, Memory, Reading
from harness.judge.sides import Side
from harness.model.geometric_mean import geometric_mean
from harness.model.verdict import Trust

_LAUNCH_BOUND_WIDER = 4.0
"""The last half percent of a launch-bound call is the host's noise: it costs seconds to narrow and says nothing."""


@dataclass(frozen=True)
class Block:
    """Nanoseconds a call of both sides (geometric means of their two batches), and what else was seen."""

    baseline_ns: float
    candidate_ns: float
    claimed_ns: float
    disturbed_share: float
    """Of its most disturbed batch."""
    spoiled: bool
    subtracted_ns: float = 0.0
    """Of a call of the candidate, the mean of its two batches."""
    readings: tuple[tuple[tuple[Reading, ...], ...], ...] = ()
    """Of baseline and candidate, the calls of each batch where they are timed one by one."""

    @property
    def log_ratio(self) -> float:
        """ln(baseline / candidate)."""
        return math.log(self.baseline_ns / self.candidate_ns)


@dataclass(frozen=True)
class Entrant:
    """One side of a block: how many calls its batches have, and how long one may take."""

    side: Side
    calls: int
    within_s: float


@dataclass(frozen=True)
class Match:
    """Baseline and candidate, prepared for the same workload."""

    baseline: Entrant
    candidate: Entrant
    memory: Memory

    @property
    def sets(self) -> int:
        """Sets that a half of a block needs; a side with fewer calls uses the first of them."""
        return max(self.baseline.calls, self.candidate.calls)


def block(match: Match, fill: Callable[[int], None], check: Callable[[Match], None]) -> Block:
    """Run one block.

    Args:
        match: both sides.
        fill: writes fresh inputs into slots 0 to n - 1.
        check: checks what both sides left; raises when the candidate is wrong.

    Raises:
        RunnerFailed: a side failed.
    """
    order = secrets.choice(((0, 1, 1, 0), (1, 0, 0, 1)))
    entrants = (match.baseline, match.candidate)
    seen: tuple[list[Batch], list[Batch]] = ([], [])
    for half in (order[:2], order[2:]):
        fill(match.sets)
        with match.candidate.side.device.timing():
            for which in half:
                one = entrants[which]
                seen[which].append(one.side.batch(match.memory, range(one.calls), one.within_s))
        check(match)
    calibration = match.candidate.side.device.calibration
    baseline, candidate = (
        geometric_mean(counted_call_ns(batch, one.calls, calibration) for batch in batches)
        for one, batches in zip(entrants, seen, strict=True)
    )
    both = [*seen[0], *seen[1]]
    return Block(
        baseline_ns=baseline,
        candidate_ns=candidate,
        claimed_ns=sum(batch.claimed_ns for batch in seen[1]) / (2 * match.candidate.calls),
        disturbed_share=max(batch.disturbed_ns / batch.ns for batch in both),
        spoiled=any(disturbed(batch) for batch in both),
        subtracted_ns=statistics.fmean(subtracted_ns(each, match.candidate.calls, calibration) for each in seen[1]),
        readings=tuple(tuple(batch.readings for batch in batches) for batches in seen),
    )


def wanted_width(half_width: float, blocks: Sequence[Block], device: Device) -> float:
    """The half-width at which timing may stop: a wider one for what is launch-bound."""
    latency = statistics.fmean(each.candidate_ns for each in blocks)
    claimed = statistics.fmean(each.claimed_ns for each in blocks)
    wider = _LAUNCH_BOUND_WIDER if device.trust(latency, claimed) is Trust.LAUNCH_BOUND else 1.0
    return half_width * wider


def kept(blocks: list[Block], least: int) -> list[Block]:
    """The blocks that count: the undisturbed ones; where these are fewer than `least`, the least disturbed ones.

    Neither looks at how long a block took.
    """
    clean = [each for each in blocks if not each.spoiled]
    if len(clean) >= least:
        return clean
    chosen = {id(each) for each in sorted(blocks, key=lambda each: each.disturbed_share)[:least]}
    return [each for each in blocks if id(each) in chosen]
