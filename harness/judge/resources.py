"""Parts of the judge that the answers to requests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from harness.judge.baseline.baseline_runners import Opponents
from harness.judge.devices.interface import Clock, Device
from harness.judge.memory_planner import MemoryPlanner
from harness.model.config import SandboxKind
from harness.model.judging import EnvironmentRecord, JudgeProgress
from harness.model.problem import Problem, Workload
from harness.sol.roofline import Bounds, NoBoundError

Progress = Callable[[JudgeProgress], None]


class Resources(Protocol):
    """Devices, directories and caches of the judge."""

    device: Device
    environment: EnvironmentRecord
    cache_dir: Path
    sandbox: SandboxKind

    def opponents(self, clock: Clock) -> Opponents:
        """Return the runners of baselines on one of the device's clocks."""

    def memory_planner(self, problem: Problem) -> MemoryPlanner:
        """Return the planner of the device's memory for a request about a problem."""

    def bounds(self, problem: Problem, workload: Workload) -> Bounds | NoBoundError:
        """Return the bounds of a workload on the device, or the reason why it has none.

        Args:
            problem: the problem.
            workload: one of its workloads.
        """

    def measure_hardware_again(self) -> None:
        """Measure the hardware's rates again, because a busy machine has bounds that are too high."""

    def serve_check(self) -> float:
        """Serve a waiting check if it is due. Return the seconds that it took."""
