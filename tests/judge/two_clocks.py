"""The real judge on the CPU with a second clock, which stands in for the events of a GPU.

Run it in place of `python -m harness.judge`. The second clock has a hundred times as many ticks and does not
support C++; a candidate with the parameter `sealed` counts as a sealed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from harness.judge import __main__ as judge_process
from harness.judge import evaluation
from harness.judge.devices.cpu_clock import CpuClock, CpuConnection, CpuMemory
from harness.judge.devices.cpu_hardware import CpuHardware
from harness.judge.devices.interface import Batch, Device
from harness.judge.devices.opening import open_device
from harness.judge.sides import Staged, stage_solution
from harness.model.problem import Problem
from harness.model.solution import Solution

TICKS = 100


class HardwareWithoutCpp:
    """The same hardware, on which no C++ runs."""

    def __init__(self, hardware: CpuHardware) -> None:
        self._hardware = hardware
        self.languages = tuple(language for language in hardware.languages if language != "cpp")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hardware, name)


class SecondClock:
    """The same clock with readings in another unit."""

    def __init__(self, clock: CpuClock) -> None:
        self._clock, self.hardware = clock, HardwareWithoutCpp(clock.hardware)
        first = clock.calibration
        self.calibration = replace(
            first, handshake_ns=first.handshake_ns * TICKS, dispatch_ns=first.dispatch_ns * TICKS
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def time_calls(self, connection: CpuConnection, memory: CpuMemory, slots: Sequence[int], within_s: float) -> Batch:
        batch = self._clock.time_calls(connection, memory, slots, within_s)
        return Batch(batch.ns * TICKS, batch.claimed_ns * TICKS, batch.disturbed_ns * TICKS)


def open_with_two_clocks(name: str, **places: Any) -> Device:
    """Replace the judge's function: open the device with a second clock for sealed candidates."""
    device = open_device(name, **places)
    return replace(device, sealed_clock=cast("Any", SecondClock(cast("CpuClock", device.clock))))


def stage(problem: Problem, solution: Solution, **places: Any) -> Staged:
    """Replace the judge's function: add a plan for no workload if the solution counts as sealed."""
    staged = stage_solution(problem, solution, **places)
    return replace(staged, plans=cast("Any", {"none": None})) if "sealed" in solution.spec.params else staged


if __name__ == "__main__":
    setattr(judge_process, "open_device", open_with_two_clocks)  # noqa: B010
    setattr(evaluation, "stage_solution", stage)  # noqa: B010
    judge_process.main()
