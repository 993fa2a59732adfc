"""Times of a baseline while no process of a candidate exists; `harness.judge.baseline.slowdown` uses them."""

from __future__ import annotations

from harness.judge.checks import WorkloadSets
from harness.judge.clock import calls_for, per_call_ns
from harness.judge.devices.interface import Memory
from harness.judge.input_data.layout import Layout
from harness.judge.sides import Side
from harness.model.judging import Variant
from harness.model.problem import Workload

_BATCHES = 6
_PATIENCE_S = 60.0


def time_baseline_alone(
    side: Side, workload: Workload, layout: Layout, memory: Memory, sets: WorkloadSets, variant: Variant
) -> tuple[float, ...]:
    """Return the nanoseconds per call of several batches of a baseline, while no process of a candidate exists.

    Args:
        side: the baseline's runner.
        workload: the workload.
        layout: of its inputs and outputs in memory.
        memory: of the workload.
        sets: writes its inputs.
        variant: the baseline.

    Raises:
        RunnerFailed: the baseline broke.
    """
    calibration = side.device.calibration
    side.prepare(workload, layout, memory.capacity, variant)
    sets.fill([memory.views(0)])
    side.batch(memory, range(1), side.first_call_s)
    single_call_ns = per_call_ns(side.batch(memory, range(1), _PATIENCE_S), 1, calibration)
    calls = calls_for(single_call_ns, memory.capacity, calibration)
    times: list[float] = []
    for _ in range(_BATCHES):
        sets.fill([memory.views(slot) for slot in range(calls)])
        with side.device.timing():
            batch = side.batch(memory, range(calls), _PATIENCE_S)
        times.append(per_call_ns(batch, calls, calibration))
    return tuple(times)
