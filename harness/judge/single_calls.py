"""Comparison of calls in a batch with single calls, where the calls of a batch are timed together.

A candidate that does the work of several calls at once is fast in a batch, and not in a single call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.checked_calls import SLOWER_THAN_BASELINE, CheckedCalls
from harness.judge.clock import disturbed, per_call_ns
from harness.judge.runners import RunnerFailed
from harness.judge.sides import Side
from harness.judge.timing import Block
from harness.model.interval import geometric_mean
from harness.model.verdict import Verdict

REPETITIONS = 3
"""Number of undisturbed measurements that must agree before a candidate is accused."""
_MOST_REPETITIONS = 100
_SINGLES = 5
"""Batches of one call of each side, in one measurement of single calls."""
_BATCHED_GAIN = 1.5
"""A call in a batch must take at least the time of a single call divided by this factor; else calls were merged."""


@dataclass
class SingleCalls:
    """The shortest single calls of both sides so far."""

    calls: CheckedCalls
    baseline: Side
    candidate_ns: float = math.inf
    baseline_ns: float = math.inf

    def measure(self) -> bool:
        """Time batches of one call of both sides and keep the shortest times. The candidate's outputs are checked.

        Returns:
            True if no other process disturbed the candidate's batches.

        Raises:
            RunnerFailed: the candidate broke or is wrong.
            BaselineFailed: the baseline broke.
        """
        calls, calibration = self.calls, self.calls.candidate.clock.calibration
        quiet = True
        for _ in range(_SINGLES):
            calls.fill(1)
            batch = self.baseline.batch(calls.memory, range(1), calls.limit_s(1) * SLOWER_THAN_BASELINE)
            self.baseline_ns = min(self.baseline_ns, per_call_ns(batch, 1, calibration))
            batch = calls.batch(1)
            self.candidate_ns = min(self.candidate_ns, per_call_ns(batch, 1, calibration))
            quiet = quiet and not disturbed(batch)
            calls.check([0])
        return quiet

    def compare(self, blocks: Sequence[Block]) -> float:
        """Check that a single call costs no more than a call in a batch, apart from the cost of waking a runner.

        That cost is the handshake, and the difference between a single call of the baseline and its calls in batches:
        in single calls, its code and data are as cold as the candidate's.

        Returns:
            ln(single call / call in a batch) if the difference is too large and the machine was too rarely quiet for
            an accusation, else 0.0.

        Raises:
            RunnerFailed: the difference is too large in `REPETITIONS` undisturbed repetitions.
        """
        batched_ns = geometric_mean([block.candidate_ns for block in blocks])
        baseline_batched_ns = geometric_mean([block.baseline_ns for block in blocks])
        quiet = 0
        for _ in range(_MOST_REPETITIONS):
            baseline_excess_ns = max(0.0, self.baseline_ns - baseline_batched_ns)
            waking_ns = self.calls.candidate.clock.calibration.handshake_ns + baseline_excess_ns
            if self.candidate_ns <= _BATCHED_GAIN * batched_ns + waking_ns:
                return 0.0
            if quiet == REPETITIONS:
                break
            quiet += self.measure()
        if quiet < REPETITIONS:
            return math.log((self.candidate_ns - waking_ns) / batched_ns)
        raise RunnerFailed(
            Verdict.SUSPECT,
            f"a call alone takes {self.candidate_ns / 1e3:.1f} us, a call in a batch {batched_ns / 1e3:.1f} us: "
            "calls are not made one by one",
        )
