"""The real judge on the CPU with a second clock, which stands in for the events of a GPU.

Run it in place of `python -m harness.judge`. The second clock has a hundred times as many ticks and does not
support C++; a candidate with the parameter `sealed` counts as a sealed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from harness.judge import evaluation
from harness.judge.__main__ import main
from harness.judge.devices.cpu import CpuDevice
from harness.judge.devices.interface import Batch, Device, Memory
from harness.judge.runners import Runner
from harness.judge.sides import Staged, stage_solution
from harness.model.problem import Problem
from harness.model.solution import Solution

TICKS = 100


class SecondClock:
    """The same device with readings in another unit."""

    languages = ("pytorch",)

    def __init__(self, device: CpuDevice) -> None:
        self._device = device
        first = device.calibration
        self.calibration = replace(
            first, handshake_ns=first.handshake_ns * TICKS, dispatch_ns=first.dispatch_ns * TICKS
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def batch(self, runner: Runner, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        batch = self._device.batch(runner, memory, slots, within_s)
        return Batch(batch.ns * TICKS, batch.claimed_ns * TICKS, batch.disturbed_ns * TICKS)


def clock(device: CpuDevice, *, sealed: bool) -> Device:
    """Replace the device's method: return the second clock for sealed candidates."""
    if not sealed:
        return device
    if not hasattr(device, "second"):
        device.second = SecondClock(device)  # type: ignore[attr-defined]
    return cast("Device", device.second)  # type: ignore[attr-defined]


def stage(problem: Problem, solution: Solution, **places: Any) -> Staged:
    """Replace the judge's function: add a plan for no workload if the solution counts as sealed."""
    staged = stage_solution(problem, solution, **places)
    return replace(staged, plans=cast("Any", {"none": None})) if "sealed" in solution.spec.params else staged


if __name__ == "__main__":
    setattr(CpuDevice, "clock", clock)  # noqa: B010
    setattr(evaluation, "stage_solution", stage)  # noqa: B010
    main()
