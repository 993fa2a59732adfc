"""Memory of the workloads of one request: planned beforehand, and made free where it lacks.

A lack of memory is no verdict by itself. The judge first ends everything that it keeps for later, and tries again with
as little as possible. If that fails too, the figures of the driver decide: a candidate is blamed only if they show that
no other program holds the device's memory (docs/judge.md, "Memory").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from harness.errors import OutOfMachineMemoryError
from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.devices.interface import Clock, Device
from harness.judge.input_data.layout import layout_of
from harness.judge.isolation.process_tree import is_descendant
from harness.judge.memory_forecast import forecast
from harness.judge.memory_plan import MemoryPlan, MemoryState, plan_memory, truth_budget
from harness.judge.precision import Truth, find_truth
from harness.judge.reference import Outputs, Reference, Value
from harness.judge.runners import BaselineFailed, NoDeviceMemory, RunnerFailed, RunnerOutOfMemory
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage
from harness.model.problem import Problem, Workload
from harness.model.verdict import Verdict

LACK = (NoDeviceMemory, RunnerOutOfMemory, torch.OutOfMemoryError)
"""Exceptions for a lack of device memory: of the judge, and of a runner."""
_HELD_SHARE = 4
"""A candidate's process that holds 1 / this share of the device's memory, and more than the reference needs, lacks
nothing that it is entitled to."""
_END_OTHERS = "end other programs on this GPU: nvidia-smi lists them"
_END_HOSTS_OTHERS = "end other programs, or add memory"


class MemoryPlanner:
    """Plans and frees the memory of the device.

    Args:
        device: the device.
        problem: problem of the request.
        end_kept: ends the runners that the judge keeps for later requests, except those of a problem, if it gets one.
    """

    def __init__(self, device: Device, problem: Problem, end_kept: Callable[[Problem | None], None]) -> None:
        self._device, self._problem, self._end_kept = device, problem, end_kept
        self._has_ended_kept = False

    @timed_as(JudgeStage.MEMORY)
    def plan(self, clock: Clock, workload: Workload, *, sparing: bool = False) -> MemoryPlan | None:
        """Return what a workload may use; None on a device whose memory needs no plan.

        Memory that the judge keeps from the last workload is given back first. If the prediction does not fit, runners
        that are kept for requests about other problems are ended, once in a request.

        Args:
            clock: times its calls.
            workload: the workload.
            sparing: use as little as possible, after a lack of memory.
        """
        self._device.hardware.release_caches(keep_reserve=not sparing)
        plan = self._planned(clock, workload, sparing=sparing)
        if plan is not None and not plan.fits and not sparing and not self._has_ended_kept:
            self._end_runners(keep=self._problem)
            plan = self._planned(clock, workload, sparing=sparing)
        return plan

    def _planned(self, clock: Clock, workload: Workload, *, sparing: bool) -> MemoryPlan | None:
        state = self._device.hardware.memory_state()
        if state is None:
            return None
        workloads, layout = len(self._problem.workloads), layout_of(self._problem, workload)
        calls, predicted = clock.most_calls(workloads), forecast(self._problem, workload)
        return plan_memory(state, layout, predicted, calls, sparing=sparing)

    @timed_as(JudgeStage.MEMORY)
    def make_room(self) -> None:
        """End every runner that is kept for later, and give cached memory back."""
        self._end_runners(keep=None)
        self._device.hardware.release_caches(keep_reserve=False)

    def _end_runners(self, keep: Problem | None) -> None:
        self._has_ended_kept = True
        self._end_kept(keep)
        self._device.runners.end_standby()

    def state(self) -> MemoryState | None:
        """Return the current use of the device's memory; None if it needs no plan."""
        return self._device.hardware.memory_state()

    def check_of(self, reference: Reference, sets: WorkloadSets) -> WorkloadCheck:
        """Return the check of a workload's outputs, whose float64 runs use the memory that is free.

        Args:
            reference: of the problem.
            sets: writes its inputs.
        """

        def truth_of(of: Reference, inputs: Sequence[Value], expected: Outputs) -> Truth | str:
            state = self.state()
            return find_truth(of, inputs, expected, None if state is None else truth_budget(state))

        return WorkloadCheck(reference, sets, self._device.hardware.summed, truth_of)

    def cause(self, lack: Exception, workload: Workload, state: MemoryState | None, candidate: int | None) -> Exception:
        """Return the exception that a second lack of memory on a workload means, although room was made for it.

        Args:
            lack: the second exception.
            workload: the workload.
            state: use of the device when it was raised.
            candidate: id of the first process of the candidate's sandbox; None if it does not exist.

        Returns:
            `RunnerFailed` if the candidate is the cause, `OutOfMachineMemoryError` if other programs hold memory or the
            driver does not say who does, `BaselineFailed` if the device is too small for the problem. On a device whose
            memory needs no plan, the candidate is the cause of its own failed allocations.
        """
        where = f"{self._problem.key}, workload {workload.uuid}"
        reference_bytes = forecast(self._problem, workload).reference_bytes
        message = f"device memory does not suffice ({lack})"
        is_own_report = isinstance(lack, RunnerOutOfMemory) and not lack.of_baseline
        if state is None and is_own_report:
            # Not a condition of the machine: a candidate could report it in every call, and end the judge each time.
            return RunnerFailed(Verdict.RUNTIME_ERROR, str(lack))
        if state is None or state.is_shared:
            described = "" if state is None else f"; {state.described()}"
            remedy = _END_HOSTS_OTHERS if state is None else _END_OTHERS
            return OutOfMachineMemoryError(f"{message}{described}", where=where, remedy=remedy)
        candidate_bytes = held_bytes(state, candidate)
        if is_own_report:
            return RunnerFailed(Verdict.RUNTIME_ERROR, f"{lack} (its processes hold {_gib(candidate_bytes)})")
        if candidate_bytes > max(state.total // _HELD_SHARE, 2 * reference_bytes):
            return RunnerFailed(
                Verdict.RUNTIME_ERROR,
                f"left no memory on the device: its processes hold {_gib(candidate_bytes)} ({lack})",
            )
        return BaselineFailed(
            f"the device is too small for workload {workload.uuid}: {message}; a run of the reference needs about "
            f"{_gib(reference_bytes)} of {_gib(state.total)}"
        )


def held_bytes(state: MemoryState, ancestor: int | None) -> int:
    """Return the device memory of a process and its descendants in bytes; 0 if there is no such process.

    Args:
        state: use of the device.
        ancestor: id of the process.
    """
    if ancestor is None or state.processes is None:
        return 0
    return sum(size for pid, size in state.processes.items() if is_descendant(pid, ancestor))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
