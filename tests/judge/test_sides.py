"""Sides of a race while device memory is short: no process keeps memory while another one works."""

from __future__ import annotations

from typing import Any
from unittest.mock import call, create_autospec

import pytest

from harness.judge.devices.interface import Batch, Clock, Connection, DeviceHardware, RunnerTrust
from harness.judge.input_data.layout import layout_of
from harness.judge.memory_plan import MemoryPlan
from harness.judge.runners import BaselineFailed, Runner, RunnerFailed, RunnerOutOfMemory
from harness.judge.sides import Side
from harness.model.verdict import Verdict
from tests.judge.problem_in_memory import problem, tensor

USUAL = MemoryPlan(4, 10, 0, fits=True)
SPARING = MemoryPlan(1, 2, 0, fits=True, sparing=True)


def side(*, is_baseline: bool = False) -> Side:
    """Return a side on a stand-in for a clock."""
    clock = create_autospec(Clock, instance=True)
    clock.hardware = create_autospec(DeviceHardware, instance=True)
    clock.time_calls.return_value = Batch(1_000, 1_000, 0)
    connection = Connection(create_autospec(Runner, instance=True), RunnerTrust.CANDIDATE)
    return Side(clock, connection, 1.0, {}, is_baseline=is_baseline)


def prepared(plan: MemoryPlan, **settings: bool) -> Side:
    """Return a side that was prepared with a plan."""
    vector = tensor("float32", "n")
    sample = problem({"x": vector}, {"y": vector}, "def run(x):\n    return x\n", {"n": 4})
    of_plan = side(**settings)
    of_plan.prepare(sample.workloads[0], layout_of(sample, sample.workloads[0]), 1, plan=plan)
    return of_plan


@pytest.mark.parametrize(("plan", "released"), [(USUAL, False), (SPARING, True)])
def test_memory_is_given_back_around_each_batch_only_if_it_is_short(plan: MemoryPlan, released: bool) -> None:
    of_plan = prepared(plan)
    clock: Any = of_plan.clock
    for _ in range(2):
        of_plan.batch(create_autospec(object), range(1), 1.0)
    expected = [call(keep_reserve=False)] * 2 if released else []
    assert clock.hardware.release_caches.mock_calls == expected
    assert clock.release_memory.mock_calls == ([call(of_plan.connection)] * 2 if released else [])


@pytest.mark.parametrize("failing", ["time_calls", "release_memory"])
def test_a_baselines_failure_is_the_problems_and_a_candidates_its_own(failing: str) -> None:
    failure = RunnerFailed(Verdict.RUNTIME_ERROR, "killed by SIGSEGV")
    for is_baseline, expected in ((True, BaselineFailed), (False, RunnerFailed)):
        of_plan = prepared(SPARING, is_baseline=is_baseline)
        clock: Any = of_plan.clock
        getattr(clock, failing).side_effect = failure
        with pytest.raises(expected, match="killed by SIGSEGV"):
            of_plan.batch(create_autospec(object), range(1), 1.0)


@pytest.mark.parametrize("is_baseline", [False, True])
def test_a_lack_of_memory_names_the_side(*, is_baseline: bool) -> None:
    of_plan = prepared(USUAL, is_baseline=is_baseline)
    clock: Any = of_plan.clock
    clock.time_calls.side_effect = RunnerOutOfMemory(Verdict.RUNTIME_ERROR, "CUDA out of memory")
    with pytest.raises(RunnerOutOfMemory) as lack:
        of_plan.batch(create_autospec(object), range(1), 1.0)
    assert lack.value.of_baseline == is_baseline
