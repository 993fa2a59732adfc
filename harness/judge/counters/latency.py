"""Latency of a sealed call with a cold and with a warm L2, reported with the counters and never part of a verdict."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch

from harness.judge.checks import WorkloadSets
from harness.judge.counters.replays import Replay
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.runners import RunnerFailed
from harness.judge.sides import Stage, Staged, load
from harness.runner import wire

if TYPE_CHECKING:
    from harness.judge.devices.interface import Device
    from harness.model.problem import Problem, Workload

_WITHIN_S = 30.0


def staged_replay(replay: Replay) -> Staged:
    """Return a replay in the form that a trusted launcher loads."""

    def put(stage: Stage) -> dict[str, object]:
        directories = [stage.inside(directory) for directory in replay.copy_artefacts(stage.directory)]
        return {"op": "load", "language": "cuda", "artefacts": directories}

    return Staged(put, _WITHIN_S, replay.plans)


def cold_and_warm_us(
    device: Device, problem: Problem, workload: Workload, replay: Replay, source: InputSource
) -> tuple[float, float] | None:
    """Measure a call with L2 displaced before it, and a call directly after another.

    Args:
        device: the GPU.
        problem: problem of the workload.
        workload: workload to measure.
        replay: the solution.
        source: source of new inputs.

    Returns:
        Microseconds of the cold call and of the warm call; None if a call fails.
    """
    clock = device.clock(sealed=True)
    layout = layout_of(problem, workload)
    try:
        with closing(load(clock, clock.runner(), staged_replay(replay), trusted=False)) as side:
            memory = clock.memory(layout)
            side.prepare(workload, layout, memory.capacity)
            WorkloadSets(problem, source, workload).fill([memory.views(0)])
            clock.settle()
            with clock.timing():
                batch = side.batch(memory, range(1), _WITHIN_S)
                message = {"op": "cold_and_warm", "placement": batch.readings[-1].placement}
                record = side.runner.ask(message, wire.Code.READY, _WITHIN_S)
    except (RunnerFailed, torch.OutOfMemoryError):
        return None
    overhead_ns = clock.calibration.call_overhead_ns
    cold, warm = (max(ns - overhead_ns, 0.0) / 1e3 for ns in (record.call, record.claimed_ns))
    return cold, warm
