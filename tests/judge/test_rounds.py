"""Accusations by the difference between single calls and calls in batches, and the batches before timing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from unittest.mock import create_autospec

import pytest

from harness.judge.checked_calls import CheckedCalls
from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.correctness import Comparison
from harness.judge.deadline import Deadline
from harness.judge.devices.interface import Batch, Calibration, Clock, Connection, DeviceHardware, Memory, RunnerTrust
from harness.judge.rounds import Rounds
from harness.judge.runners import Runner, RunnerFailed
from harness.judge.sides import Side
from harness.judge.single_calls import SingleCalls
from harness.judge.timing import Block
from harness.model.interval import FIRST_BLOCKS
from harness.model.timed_checks import checked_calls
from harness.model.verdict import Trust, Verdict

BLOCKS = [Block(1_000.0, 1_000.0, 1_000.0, 0.0, spoiled=False)] * 12


class Machine:
    """Stand-in for a device: a call of the candidate takes `alone_ns`, a call of the baseline 1 us."""

    def __init__(self, alone_ns: int, disturbed_ns: Iterator[int]) -> None:
        self.alone_ns, self.disturbed_ns = alone_ns, disturbed_ns
        self.batches = 0
        self.lengths: list[int] = []
        """Calls of each batch of the candidate."""
        self.untried = 0
        """Placements at which the candidate has made no call."""

    def rounds(self) -> Rounds:
        clock = create_autospec(Clock, instance=True)
        clock.calibration, clock.separate_calls = Calibration(0.0, 0.0), False
        clock.hardware = create_autospec(DeviceHardware, instance=True)
        clock.hardware.map_slots.side_effect = lambda work, slots: [work(slot) for slot in slots]
        baseline, candidate = (
            Side(clock, Connection(create_autospec(Runner, instance=True), trust), 1.0, {})
            for trust in (RunnerTrust.REFERENCE, RunnerTrust.CANDIDATE)
        )

        def batch(connection: Connection, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
            del memory, within_s
            if connection is baseline.connection:
                return Batch(len(slots) * 1_000, len(slots) * 1_000, 0)
            self.batches += 1
            self.lengths.append(len(slots))
            self.untried = max(0, self.untried - len(slots))
            return Batch(len(slots) * self.alone_ns, len(slots) * self.alone_ns, next(self.disturbed_ns))

        clock.time_calls.side_effect = batch
        checker = create_autospec(WorkloadCheck, instance=True)
        checker.check.return_value = Comparison()
        memory, sets = create_autospec(Memory, instance=True), create_autospec(WorkloadSets, instance=True)
        memory.capacity = 64
        clock.untried.side_effect = lambda connection: self.untried if connection is candidate.connection else 0
        clock.trust.return_value = Trust.BOUNDED
        sets.stress.return_value = ("large", "small", "zeros")
        self.clock, self.memory, self.sets, self.checker = clock, memory, sets, checker
        checker.sets = sets
        return Rounds(CheckedCalls(memory, checker, candidate, Deadline(1e6)), baseline)

    def singles(self) -> SingleCalls:
        rounds = self.rounds()
        singles = SingleCalls(rounds.calls, rounds.baseline)
        singles.measure()
        return singles


def always(disturbed_ns: int) -> Iterator[int]:
    while True:
        yield disturbed_ns


def test_three_undisturbed_repetitions_reject_the_candidate() -> None:
    machine = Machine(3_000, always(0))
    with pytest.raises(RunnerFailed, match="calls are not made one by one") as accused:
        machine.singles().compare(BLOCKS)
    assert accused.value.verdict is Verdict.SUSPECT
    assert machine.batches == 20, "five at first, then three repetitions of five"


def test_on_a_machine_that_is_always_busy_the_interval_is_wider_without_a_rejection() -> None:
    assert Machine(3_000, always(100)).singles().compare(BLOCKS) == pytest.approx(math.log(3))


def test_disturbed_repetitions_are_no_evidence() -> None:
    machine = Machine(3_000, iter([*[100] * 50, *[0] * 1000]))
    with pytest.raises(RunnerFailed):
        machine.singles().compare(BLOCKS)
    assert machine.batches == 65, "thirteen times five, of which ten were disturbed"


def test_single_calls_of_equal_cost_are_accepted_at_once() -> None:
    machine = Machine(1_400, always(0))
    assert machine.singles().compare(BLOCKS) == 0.0
    assert machine.batches == 5


@pytest.mark.parametrize(("call_ns", "calls"), [(1_000, 32), (1_500_000, 4), (9_000_000, 1)])
def test_stress_inputs_come_in_batches_like_the_timed_ones(call_ns: int, calls: int) -> None:
    machine = Machine(call_ns, always(0))
    rounds = machine.rounds()
    machine.lengths.clear()
    machine.sets.fill.reset_mock()
    machine.checker.check.reset_mock()
    rounds.time(0.5, 0.0)
    kinds = [call.args[1] for call in machine.sets.fill.call_args_list if any(call.args[1])]
    assert kinds, "stress inputs follow at least the last block"
    assert {len(batch) for batch in kinds} == {calls} == set(machine.lengths[-len(kinds) :])
    stressed = sum(bool(kind) for batch in kinds for kind in batch)
    assert stressed == len(kinds) * min(2, calls)
    checked = [call.args[3] for call in machine.checker.check.call_args_list if len(call.args) > 3]
    assert sum(bool(kind) for kind in checked) == stressed, "all stress inputs are checked"


@pytest.mark.parametrize(("untried", "before"), [(10, [4, 4, 2]), (0, [4])])
def test_each_placement_has_a_call_before_those_that_count(untried: int, before: list[int]) -> None:
    machine = Machine(1_000, always(0))
    rounds = machine.rounds()
    machine.clock.separate_calls = True
    machine.memory.capacity, machine.untried = 4, untried
    machine.lengths.clear()
    rounds.time(0.5, 0.0)
    assert machine.lengths[: len(before)] == before
    assert set(machine.lengths[len(before) :]) == {4}, "timed batches and those with stress inputs are of equal length"
    assert machine.checker.check.call_count >= sum(before), "their outputs are checked"


class FakeTime:
    """Stand-in for time.monotonic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1_000.0
        monkeypatch.setattr("harness.judge.deadline.time.monotonic", lambda: self.seconds)


def test_the_time_in_which_the_judge_draws_inputs_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch)
    deadline = Deadline(60.0)
    for _ in range(3):
        with deadline.generating():
            clock.seconds += 90.0
        clock.seconds += 10.0
    assert deadline.remaining_s() == pytest.approx(30.0)


def test_it_does_not_count_up_to_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch)
    deadline = Deadline(60.0)
    with deadline.generating():
        clock.seconds += 350.0
    assert deadline.remaining_s() == pytest.approx(10.0)
    with deadline.generating():
        clock.seconds += 20.0
    with pytest.raises(RunnerFailed, match="longer than max_judge_s") as late:
        deadline.remaining_s()
    assert late.value.verdict is Verdict.TIMEOUT


def test_slow_inputs_are_no_timeout_of_the_candidate_and_slow_calls_are(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(monkeypatch)
    machine = Machine(1_000, always(0))
    rounds = machine.rounds()

    def pass_time(*_: object) -> Comparison:
        clock.seconds += 20.0
        return Comparison()

    rounds.calls.deadline = Deadline(60.0)
    machine.sets.fill.side_effect = pass_time
    rounds.correctness()
    machine.sets.fill.side_effect = None
    machine.checker.check.side_effect = pass_time
    with pytest.raises(RunnerFailed, match="longer than max_judge_s"):
        rounds.correctness()


@pytest.mark.parametrize("workloads", [1, 2, 3, 6, 14, 60])
def test_all_workloads_together_have_at_least_the_checks_of_one_alone(workloads: int) -> None:
    assert workloads * checked_calls(workloads) >= checked_calls(1)
    assert checked_calls(workloads) >= 4


@pytest.mark.parametrize(("workloads", "separate", "checked"), [(1, False, 11), (14, False, 4), (14, True, 30)])
def test_long_batches_are_sampled_unless_calls_are_separate(workloads: int, separate: bool, checked: int) -> None:
    machine = Machine(1_000, always(0))
    rounds = machine.rounds()
    rounds.workloads = workloads
    machine.clock.calibration, machine.clock.separate_calls = Calibration(0.0, 0.0, most_calls=30), separate
    machine.checker.check.reset_mock()
    timed_batches = 2 * FIRST_BLOCKS
    assert rounds.time(0.5, 0.0).checked == timed_batches * checked
