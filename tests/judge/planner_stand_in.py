"""The real planner of memory on stand-in hardware, whose figures a test chooses."""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import Mock, create_autospec

from harness.judge.devices.interface import Clock, Device, DeviceHardware, RunnerPool
from harness.judge.isolation.resource_limits import GIB
from harness.judge.memory_plan import MemoryState
from harness.judge.memory_planner import MemoryPlanner
from harness.model.problem import Problem, Workload


def memory_state(
    *, available: int = 100 * GIB, processes: dict[int, int] | None = None, foreign: int | None = 0
) -> MemoryState:
    """Return the state of a device of 100 GiB, which no other program uses by default."""
    return MemoryState(total=100 * GIB, free=available, cached=0, processes=processes or {}, foreign=foreign)


@dataclass
class PlannerParts:
    """A planner with the stand-ins that it uses."""

    planner: MemoryPlanner
    workload: Workload
    """The problem's first."""
    hardware: Mock
    runners: Mock
    clock: Mock
    calls: Mock
    """Records `release_caches`, `end_kept` and `end_standby` in their order."""


def planner_of(problem: Problem, state: MemoryState | None) -> PlannerParts:
    """Return the planner of a problem on a device with a state of its memory; None: its memory needs no plan."""
    hardware, runners = create_autospec(DeviceHardware, instance=True), create_autospec(RunnerPool, instance=True)
    clock = create_autospec(Clock, instance=True)
    hardware.summed, hardware.memory_state.return_value = Mock(), state
    clock.most_calls.return_value = 10
    calls = Mock()
    calls.attach_mock(hardware.release_caches, "release_caches")
    calls.attach_mock(runners.end_standby, "end_standby")
    planner = MemoryPlanner(Device(hardware, runners, clock, clock), problem, calls.end_kept)
    return PlannerParts(planner, problem.workloads[0], hardware, runners, clock, calls)
