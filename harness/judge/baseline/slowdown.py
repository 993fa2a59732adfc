"""Slowdown of a baseline next to a candidate, relative to its time before the candidate's process existed.

A stopped runner starts no work, but work that it queued on a device before the stop may run in the baseline's turn and
slow it (docs/clock.md, "Work left for the baseline's turn"). The speed-up is then too large. A host that became slow
has the same effect, so the baseline is timed again when the candidate's process has ended. The slowdown changes no
verdict. The interval is widened by the difference that remains, so that its lower end is the speed-up over the
undisturbed baseline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from harness.judge.checks import WorkloadSets
from harness.judge.clock import calls_for, per_call_ns
from harness.judge.devices.interface import Memory
from harness.judge.sides import Side
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage

_BATCHES = 6
PATIENCE_S = 60.0
"""Seconds that a batch of a baseline may take."""
_NOISE_ERRORS = 3.0
"""Standard errors up to which a difference counts as noise."""
_LEAST = math.log(1.03)
"""Log ratio up to which a difference counts as noise."""


def time_baseline_alone(side: Side, memory: Memory, sets: WorkloadSets) -> tuple[float, ...]:
    """Return the nanoseconds per call of several batches of a baseline, while no process of a candidate exists.

    Args:
        side: the baseline's runner, prepared for the workload.
        memory: of the workload.
        sets: writes its inputs.

    Raises:
        BaselineFailed: the baseline broke.
    """
    calibration = side.clock.calibration
    sets.fill([memory.views(0)])
    side.batch(memory, range(1), side.first_call_s)
    single_call_ns = per_call_ns(side.batch(memory, range(1), PATIENCE_S), 1, calibration)
    calls = calls_for(single_call_ns, memory.capacity, calibration)
    return tuple(timed_call_ns(side, memory, sets, calls) for _ in range(_BATCHES))


def timed_call_ns(side: Side, memory: Memory, sets: WorkloadSets, calls: int) -> float:
    """Return the nanoseconds per call of one batch of a baseline with fresh inputs.

    Args:
        side: the baseline's runner, prepared for the workload.
        memory: of the workload.
        sets: writes its inputs.
        calls: number of calls of the batch.

    Raises:
        BaselineFailed: the baseline broke.
    """
    sets.fill([memory.views(slot) for slot in range(calls)])
    with timed_as(JudgeStage.WAIT), side.clock.hardware.timing():
        batch = side.batch(memory, range(calls), PATIENCE_S)
    return per_call_ns(batch, calls, side.clock.calibration)


def slowed_by(alone_ns: Sequence[float], beside_ns: Sequence[float]) -> float:
    """Return ln(time next to the candidate / time alone) of a baseline; 0.0 within noise or with fewer than two times.

    Args:
        alone_ns: times per call before the candidate's process existed, in nanoseconds.
        beside_ns: times per call in the blocks that count, in nanoseconds.
    """
    if len(alone_ns) < 2 or len(beside_ns) < 2:
        return 0.0
    alone, beside = ([math.log(time_ns) for time_ns in times] for times in (alone_ns, beside_ns))
    difference = statistics.fmean(beside) - statistics.fmean(alone)
    error = math.hypot(*(statistics.stdev(logs) / math.sqrt(len(logs)) for logs in (alone, beside)))
    return difference if difference > max(_LEAST, _NOISE_ERRORS * error) else 0.0
