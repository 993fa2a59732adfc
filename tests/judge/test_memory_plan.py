"""Plans of a device's memory, the planner that makes room, and the cause of a lack of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import ANY, call

import pytest
import torch

from harness.errors import OutOfMachineMemoryError
from harness.judge.input_data.layout import Layout, layout_of
from harness.judge.isolation.process_tree import is_descendant
from harness.judge.isolation.resource_limits import GIB
from harness.judge.memory_forecast import WorkloadMemory
from harness.judge.memory_plan import (
    FOREIGN_BYTES,
    MemoryPlan,
    MemoryState,
    fitting_sets,
    placement_count,
    plan_memory,
    truth_budget,
)
from harness.judge.memory_planner import held_bytes
from harness.judge.runners import BaselineFailed, NoDeviceMemory, RunnerFailed, RunnerOutOfMemory
from harness.model.verdict import Verdict
from tests.judge.planner_stand_in import PlannerParts, memory_state, planner_of
from tests.judge.problem_in_memory import problem, tensor

MIB = 1 << 20
CALLS = 10


def _layout(mebibytes: int) -> Layout:
    """Return the layout of a call with an input and an output of this size."""
    vector = tensor("float32", "n")
    sample = problem({"x": vector}, {"y": vector}, "def run(x):\n    return x\n", {"n": mebibytes * MIB // 4})
    return layout_of(sample, sample.workloads[0])


def _plan(layout: Layout, state: MemoryState, *, reference_bytes: int = 0, sparing: bool = False) -> MemoryPlan:
    forecast = WorkloadMemory(layout.input_stride, layout.output_stride, reference_bytes, 0, is_traced=True)
    return plan_memory(state, layout, forecast, CALLS, sparing=sparing)


def test_a_small_workload_has_the_usual_placements_and_sets() -> None:
    layout = _layout(1)
    plan = _plan(layout, memory_state())
    assert (plan.placements, plan.sets, plan.fits) == (64, fitting_sets(layout), True)


def test_the_placements_of_a_large_workload_are_limited_by_bytes() -> None:
    plan = _plan(_layout(512), memory_state())
    assert plan.placements == 4, "4 GiB of placements of 1 GiB"
    assert plan.sets == 2, "2 GiB of sets of 1 GiB"


def test_a_workload_that_almost_fills_the_device_has_few_placements() -> None:
    layout = _layout(4 * 1024)
    plan = _plan(layout, memory_state())
    assert plan.placements == 1, "four placements of 8 GiB are more than an eighth of what is left"
    assert (plan.sets, plan.fits) == (1, True)


def test_at_least_four_placements_are_used_where_they_fit() -> None:
    size = 2 * GIB
    assert placement_count(size, 80 * GIB, CALLS) == 4, "placements of more than 4 GiB in total"
    assert placement_count(size, 8 * 3 * size, CALLS) == 3
    assert placement_count(size, 0, CALLS) == 1


def test_one_set_has_its_place_however_large_it_is() -> None:
    assert fitting_sets(_layout(8 * 1024)) == 1


@pytest.mark.parametrize(("mib", "sets"), [(1, 2), (8 * 1024, 1)])
def test_a_sparing_plan_has_one_placement_and_a_batch_of_at_most_two(mib: int, sets: int) -> None:
    usual = _plan(_layout(mib), memory_state())
    sparing = _plan(_layout(mib), memory_state(), sparing=True)
    assert (sparing.placements, sparing.sets) == (1, sets)
    assert sparing.needed_bytes == usual.needed_bytes
    assert (usual.sparing, sparing.sparing) == (False, True)


@pytest.mark.parametrize("sparing", [False, True])
def test_a_prediction_that_does_not_fit_is_marked(*, sparing: bool) -> None:
    layout = _layout(1)
    needed_bytes = _plan(layout, memory_state(), reference_bytes=10 * GIB, sparing=sparing).needed_bytes
    assert needed_bytes > 3 * 10 * GIB, "the judge, the baseline and the candidate run it"
    fitting = _plan(layout, memory_state(available=needed_bytes), reference_bytes=10 * GIB, sparing=sparing)
    lacking = _plan(layout, memory_state(available=needed_bytes - 1), reference_bytes=10 * GIB, sparing=sparing)
    assert (fitting.fits, lacking.fits) == (True, False)
    assert (lacking.placements, lacking.sets) == (1, 2 if sparing else 1)


def test_memory_that_the_judges_allocator_keeps_is_available() -> None:
    state = MemoryState(total=100, free=10, cached=20, processes=None, foreign=None)
    assert state.available == 30


@pytest.mark.parametrize(("available", "expected"), [(50 * GIB, 48 * GIB), (GIB, 100 * GIB // 16)])
def test_a_float64_run_keeps_what_is_free_and_at_least_a_sixteenth(available: int, expected: int) -> None:
    assert truth_budget(memory_state(available=available)) == expected


@pytest.mark.parametrize(("foreign", "is_shared"), [(0, False), (FOREIGN_BYTES, False), (GIB + 1, True), (None, True)])
def test_a_device_is_shared_unless_it_is_known_that_others_hold_little(foreign: int | None, *, is_shared: bool) -> None:
    state = memory_state(foreign=foreign)
    assert state.is_shared is is_shared
    assert ("not known" in state.described()) == (foreign is None)


# -- the planner


def _parts(state: MemoryState | None) -> PlannerParts:
    vector = tensor("float32", "n")
    sample = problem({"x": vector}, {"y": vector}, "def run(x):\n    return x + 1\n", {"n": 1 << 20})
    return planner_of(
        sample.model_copy(update={"digest": "sha256:" + "e" * 64}), state
    )  # not the forecast of another test


def test_caches_are_released_before_each_plan() -> None:
    parts = _parts(memory_state())

    def state() -> MemoryState:
        assert parts.calls.release_caches.called, "the figures include memory that is about to be released"
        return memory_state()

    parts.hardware.memory_state.side_effect = state
    plan = parts.planner.plan(parts.clock, parts.workload)
    assert plan is not None
    assert plan.fits
    assert parts.calls.mock_calls == [call.release_caches(keep_reserve=True)]


def test_a_device_without_figures_has_no_plan() -> None:
    parts = _parts(None)
    assert parts.planner.plan(parts.clock, parts.workload) is None
    assert parts.planner.state() is None


def test_runners_of_other_problems_end_once_when_the_prediction_does_not_fit() -> None:
    parts = _parts(None)
    parts.hardware.memory_state.side_effect = [memory_state(available=GIB), memory_state(), memory_state(available=GIB)]
    plan = parts.planner.plan(parts.clock, parts.workload)
    assert plan is not None
    assert plan.fits, "the plan is made again"
    assert parts.calls.mock_calls == [
        call.release_caches(keep_reserve=True), call.end_kept(ANY), call.end_standby(),
    ]  # fmt: skip
    assert parts.workload in parts.calls.end_kept.call_args.args[0].workloads, "its own runners remain"
    later_plan = parts.planner.plan(parts.clock, parts.workload)
    assert later_plan is not None
    assert not later_plan.fits
    assert parts.calls.end_kept.call_count == 1


def test_a_sparing_plan_ends_nothing_and_releases_the_reserve() -> None:
    parts = _parts(memory_state(available=GIB))
    plan = parts.planner.plan(parts.clock, parts.workload, sparing=True)
    assert plan is not None
    assert (plan.placements, plan.sets, plan.fits) == (1, 2, False)
    assert parts.calls.mock_calls == [call.release_caches(keep_reserve=False)]


# -- the cause of a second lack

CANDIDATE = 1000


def _of_runner(*, of_baseline: bool) -> RunnerOutOfMemory:
    lack = RunnerOutOfMemory(Verdict.RUNTIME_ERROR, "OutOfMemoryError: 9 GiB")
    lack.of_baseline = of_baseline
    return lack


LACKS = [_of_runner(of_baseline=False), _of_runner(of_baseline=True), NoDeviceMemory("x"), torch.OutOfMemoryError("x")]
NOT_THE_CANDIDATES = LACKS[1:]


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process after the candidate's first one be its descendant, and no other."""
    monkeypatch.setattr(
        "harness.judge.memory_planner.is_descendant", lambda pid, ancestor: pid in (ancestor, ancestor + 1)
    )


@pytest.mark.parametrize("lack", LACKS)
@pytest.mark.parametrize("foreign", [None, 2 * GIB])
def test_nobody_is_blamed_while_other_programs_may_hold_the_memory(lack: Exception, foreign: int | None) -> None:
    parts = _parts(None)
    crowded = memory_state(processes={CANDIDATE: 90 * GIB}, foreign=foreign)
    cause = parts.planner.cause(lack, parts.workload, crowded, CANDIDATE)
    assert isinstance(cause, OutOfMachineMemoryError)
    assert "GiB are free" in str(cause)


@pytest.mark.parametrize("lack", NOT_THE_CANDIDATES)
def test_a_lack_of_host_memory_is_the_machines(lack: Exception) -> None:
    parts = _parts(None)
    assert isinstance(parts.planner.cause(lack, parts.workload, None, CANDIDATE), OutOfMachineMemoryError)


def test_a_candidate_that_reports_a_lack_of_host_memory_has_failed() -> None:
    """It could report one in every call, and end the judge each time."""
    parts = _parts(None)
    cause = parts.planner.cause(LACKS[0], parts.workload, None, CANDIDATE)
    assert isinstance(cause, RunnerFailed)
    assert (cause.verdict, cause.reason) == (Verdict.RUNTIME_ERROR, "OutOfMemoryError: 9 GiB")


@pytest.mark.usefixtures("tree")
def test_a_candidate_whose_own_allocation_fails_has_failed() -> None:
    parts = _parts(None)
    state = memory_state(processes={CANDIDATE: GIB, CANDIDATE + 1: GIB, 7: 50 * GIB})
    cause = parts.planner.cause(LACKS[0], parts.workload, state, CANDIDATE)
    assert isinstance(cause, RunnerFailed)
    assert cause.verdict is Verdict.RUNTIME_ERROR
    assert cause.reason == "OutOfMemoryError: 9 GiB (its processes hold 2.0 GiB)"


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize("lack", NOT_THE_CANDIDATES)
def test_a_candidate_that_holds_more_than_its_share_has_failed(lack: Exception) -> None:
    parts = _parts(None)
    state = memory_state(processes={CANDIDATE: GIB, CANDIDATE + 1: 25 * GIB})
    cause = parts.planner.cause(lack, parts.workload, state, CANDIDATE)
    assert isinstance(cause, RunnerFailed)
    assert cause.verdict is Verdict.RUNTIME_ERROR
    assert "its processes hold 26.0 GiB" in cause.reason


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize("lack", NOT_THE_CANDIDATES)
@pytest.mark.parametrize("candidate", [None, CANDIDATE])
def test_otherwise_the_device_is_too_small(lack: Exception, candidate: int | None) -> None:
    parts = _parts(None)
    state = memory_state(processes={CANDIDATE: 25 * GIB, CANDIDATE + 2: 60 * GIB})
    cause = parts.planner.cause(lack, parts.workload, state, candidate)
    assert isinstance(cause, BaselineFailed)
    assert "the device is too small for workload w" in str(cause)


# -- real processes

_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
_CHILD = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """Ids of a child of this process, and of the child's child."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.communicate(timeout=60)  # the end of stdin ends both


def test_descent_is_that_of_the_kernel(family: tuple[int, int]) -> None:
    child, grandchild = family
    assert is_descendant(child, child)
    assert is_descendant(grandchild, child)
    assert is_descendant(grandchild, os.getpid())
    assert is_descendant(child, grandchild) is False
    assert is_descendant(os.getpid(), child) is False


def test_a_process_that_has_ended_has_no_descent() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(timeout=60)
    assert is_descendant(process.pid, os.getpid()) is None


def test_the_memory_of_a_candidate_is_that_of_its_whole_tree(family: tuple[int, int]) -> None:
    child, grandchild = family
    state = memory_state(processes={child: 3, grandchild: 4, os.getpid(): 100})
    assert held_bytes(state, child) == 7
    assert held_bytes(state, None) == 0
    without_figures = MemoryState(total=1, free=1, cached=0, processes=None, foreign=None)
    assert held_bytes(without_figures, child) == 0
