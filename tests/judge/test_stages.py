"""Seconds of a request by stage, by a clock that only the test advances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import MagicMock, create_autospec

import pytest
import torch

from harness.judge.devices.cpu_hardware import CpuHardware
from harness.judge.devices.interface import Clock, Connection, RunnerTrust
from harness.judge.judge import Judge
from harness.judge.runners import Runner
from harness.judge.sides import Side
from harness.judge.solution_check import WaitingChecks
from harness.judge.stages import StageTimes, divided_among_threads, not_recorded, recording, timed_as
from harness.model.judging import CheckRequest, Cost, JudgeStage
from harness.model.verdict import Verdict
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import judge, write_cpp, write_problem, write_pytorch


@dataclass
class FakeClock:
    """A clock that stands still until it is advanced."""

    time_s: float = 100.0

    def __call__(self) -> float:
        return self.time_s

    def advance(self, seconds: float) -> None:
        self.time_s += seconds


def _seconds(times: StageTimes) -> dict[str, float]:
    return {str(stage): round(seconds, 9) for stage, seconds in times.seconds.items() if seconds}


def test_the_time_of_an_inner_stage_is_not_part_of_the_outer_one() -> None:
    clock = FakeClock()
    with recording(clock) as times:
        clock.advance(1)
        with timed_as(JudgeStage.COMPARISON):
            clock.advance(10)
            with timed_as(JudgeStage.TRUTH):
                clock.advance(100)
                with timed_as(JudgeStage.TRUTH):
                    clock.advance(200)
            clock.advance(20)
        clock.advance(2)
    clock.advance(1000)
    assert _seconds(times) == {"other": 3, "comparison": 30, "truth": 300}


def test_a_decorated_function_is_a_stage_at_each_call() -> None:
    clock = FakeClock()

    @timed_as(JudgeStage.FILL)
    def fill(seconds: float) -> float:
        clock.advance(seconds)
        return seconds

    assert fill(5) == 5  # outside of a recording
    for _ in range(2):
        with recording(clock) as times:
            assert fill(1) + fill(2) == 3
        assert _seconds(times) == {"fill": 3}


def test_an_exception_ends_its_stages_and_its_recording() -> None:
    clock = FakeClock()

    @timed_as(JudgeStage.FILL)
    def fail() -> None:
        clock.advance(4)
        raise ValueError("wrong")

    @timed_as(JudgeStage.CANDIDATE)
    def fail_twice() -> None:
        clock.advance(3)
        with pytest.raises(ValueError, match="wrong"):
            fail()
        clock.advance(5)
        fail()

    with recording(clock) as times, pytest.raises(ValueError, match="wrong"):
        fail_twice()
    with timed_as(JudgeStage.MEMORY):
        clock.advance(6)
    assert _seconds(times) == {"candidate": 8, "fill": 8}
    with pytest.raises(ValueError, match="wrong"), recording(clock) as failed:
        fail()
    assert _seconds(failed) == {"fill": 4}
    with recording(clock) as later:
        clock.advance(7)
        with timed_as(JudgeStage.FILL):
            clock.advance(1)
    assert _seconds(later) == {"other": 7, "fill": 1}
    assert _seconds(failed) == {"fill": 4}


def test_work_for_another_request_is_not_recorded() -> None:
    clock = FakeClock()

    @not_recorded()
    def check() -> None:
        clock.advance(50)
        with timed_as(JudgeStage.BUILD):
            clock.advance(50)
        raise ValueError("check")

    with recording(clock) as times, timed_as(JudgeStage.COMPARISON):
        clock.advance(1)
        with pytest.raises(ValueError, match="check"):
            check()
        clock.advance(2)
    assert _seconds(times) == {"comparison": 3}
    with pytest.raises(ValueError, match="check"):
        check()  # outside of a recording


def test_a_gpus_queue_is_waited_for_once_after_drawing_inputs_and_in_a_recording_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: clock.advance(10))

    def work() -> None:
        with timed_as(JudgeStage.FILL), timed_as(JudgeStage.FILL):
            clock.advance(1)
        with timed_as(JudgeStage.COMPARISON):
            clock.advance(2)

    with recording(clock) as times:
        work()
    assert _seconds(times) == {"fill": 11, "comparison": 2}
    work()
    assert clock.time_s == 116


class OtherThreads:
    """Runs work in other threads, one call after the other, so that a clock can be advanced for each."""

    def __init__(self, clock: FakeClock, waiting_s: float) -> None:
        self._clock, self._waiting_s = clock, waiting_s

    def map(self, work: Callable[[int], int], numbers: Sequence[int]) -> list[int]:
        """Return the results. The waiting thread's time is `waiting_s`, whatever the calls add up to."""
        begin = self._clock.time_s
        with ThreadPoolExecutor(1) as pool, divided_among_threads() as counted:
            futures = [pool.submit(counted(work), number) for number in numbers]
            try:
                return [future.result() for future in futures]
            finally:
                self._clock.time_s = begin + self._waiting_s


def test_the_time_of_waiting_for_other_threads_is_divided_by_their_stages() -> None:
    clock = FakeClock()
    threads = OtherThreads(clock, waiting_s=10)

    def check(slot: int) -> int:
        with timed_as(JudgeStage.REFERENCE):
            clock.advance(9)
        with timed_as(JudgeStage.COMPARISON):
            clock.advance(6)
            with timed_as(JudgeStage.TRUTH):
                clock.advance(3)
        clock.advance(2)
        return slot

    with recording(clock) as times:
        clock.advance(1)
        with timed_as(JudgeStage.CANDIDATE):
            assert threads.map(check, [0, 1, 2, 3]) == [0, 1, 2, 3]
        clock.advance(1)
    # Of 80 seconds in other threads, 36 are of the reference. Those without a stage are of the waiting thread's stage.
    assert _seconds(times) == {"other": 2, "reference": 4.5, "comparison": 3, "truth": 1.5, "candidate": 1}
    assert threads.map(check, [0, 1]) == [0, 1]  # outside of a recording
    assert sum(_seconds(times).values()) == 12


def test_a_failure_in_another_thread_does_not_lose_the_time() -> None:
    clock = FakeClock()

    @timed_as(JudgeStage.REFERENCE)
    def fail(_: int) -> int:
        clock.advance(5)
        raise ValueError("wrong")

    with recording(clock) as times:
        with pytest.raises(ValueError, match="wrong"):
            OtherThreads(clock, waiting_s=5).map(fail, [0])
        with pytest.raises(ValueError, match="wrong"):
            OtherThreads(clock, waiting_s=0).map(fail, [0])
        clock.advance(1)
    assert _seconds(times) == {"reference": 5, "other": 1}


def test_the_threads_of_a_cpus_judge_are_counted() -> None:
    clock = FakeClock()

    @timed_as(JudgeStage.REFERENCE)
    def compute(slot: int) -> int:
        clock.advance(2)
        return slot

    device = object.__new__(CpuHardware)
    with ThreadPoolExecutor(1) as device._pool, recording(clock) as times:
        assert device.map_slots(compute, [0, 1, 2]) == [0, 1, 2]
    assert _seconds(times) == {"reference": 6}


def test_a_check_between_two_batches_is_not_a_cost_of_the_evaluation() -> None:
    clock = FakeClock()

    @timed_as(JudgeStage.BUILD)
    def serve(_: CheckRequest) -> None:
        clock.advance(30)

    request = CheckRequest(id="1", problem="t/one", problem_dir="p", problem_digest="d", solution_dir="s")
    idle = object.__new__(Judge)
    idle._checks = WaitingChecks(serve, lambda: request)
    with recording(clock) as times, timed_as(JudgeStage.WAIT):
        clock.advance(1)
        idle.serve_check()
        clock.advance(1)
    assert clock.time_s == 132
    assert _seconds(times) == {"wait": 2}


def test_waiting_for_threads_without_work_is_of_the_present_stage() -> None:
    clock = FakeClock()
    with recording(clock) as times, timed_as(JudgeStage.FILL):
        assert OtherThreads(clock, waiting_s=3).map(lambda number: number, []) == []
    assert _seconds(times) == {"fill": 3}


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("", {"memory": 110, "candidate": 3}),
        ("eager", {"memory": 110, "opponent": 3}),
        ("compile", {"memory": 10, "compile": 101, "opponent": 2}),
    ],
)
def test_the_stage_of_a_sides_batches_follows_from_its_variant(variant: str, expected: dict[str, float]) -> None:
    clock = FakeClock()

    def prepare(*_: object, **__: object) -> None:
        with timed_as(JudgeStage.MEMORY):
            clock.advance(10)
        clock.advance(100)

    device_clock = create_autospec(Clock, instance=True)
    device_clock.prepare.side_effect = prepare
    device_clock.time_calls.side_effect = lambda *_: clock.advance(1)
    trust = RunnerTrust.REFERENCE if variant else RunnerTrust.CANDIDATE
    connection = Connection(create_autospec(Runner, instance=True), trust)
    side = Side(device_clock, connection, first_call_s=1.0, launches={}, is_baseline=bool(variant))
    with recording(clock) as times:
        side.prepare(MagicMock(), MagicMock(), 1, variant)
        for _ in range(3):
            side.batch(MagicMock(), range(1), 1.0)
    assert _seconds(times) == expected


def test_a_cost_has_the_stages_that_took_time() -> None:
    clock = FakeClock()
    with recording(clock) as times:
        with timed_as(JudgeStage.BUILD):
            clock.advance(1.25)
        with timed_as(JudgeStage.FILL):
            clock.advance(0.0001)
        clock.advance(2.5)
    cost = times.cost(build_s=1.25)
    assert cost == Cost(build_s=1.25, judge_s=2.5, stages={JudgeStage.BUILD: 1.25, JudgeStage.OTHER: 2.5})
    assert cost.model_dump(mode="json") == {"build_s": 1.25, "judge_s": 2.5, "stages": {"build": 1.25, "other": 2.5}}
    assert Cost.model_validate_json(cost.model_dump_json()) == cost
    assert Cost(judge_s=1.0).model_dump(mode="json") == {"build_s": 0.0, "judge_s": 1.0}


def _assert_complete(cost: Cost) -> None:
    rounding_s = 0.0005 * (len(JudgeStage) + 2)
    assert sum(cost.stages.values()) == pytest.approx(cost.build_s + cost.judge_s, abs=rounding_s)
    assert all(seconds > 0 for seconds in cost.stages.values())


@pytest.mark.xdist_group("judge")
def test_an_evaluation_has_the_seconds_of_its_stages(court: JudgeProcess, tmp_path: Path) -> None:
    answer = judge(court, write_problem(tmp_path), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.PASSED, answer.reason
    _assert_complete(answer.cost)
    # Hundreds of calls take more than the half millisecond that is rounded to zero. The others may be faster.
    certain = {"fill", "candidate", "opponent", "reference", "comparison"}
    fast = {"wait", "build", "truth", "memory", "other"}
    assert certain <= {str(stage) for stage in answer.cost.stages} <= certain | fast
    assert answer.cost.stages.get(JudgeStage.BUILD, 0.0) <= answer.cost.build_s + 0.001


@pytest.mark.xdist_group("judge")
def test_a_measurement_of_baselines_has_the_seconds_of_its_stages(court: JudgeProcess, tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    write_pytorch(problem / "baseline", "import torch\ndef run(x, factor, y):\n    torch.mul(x, factor, out=y)\n")
    answer = judge(court, problem, None)
    assert answer.verdict is Verdict.PASSED, answer.reason
    _assert_complete(answer.cost)
    assert answer.cost.build_s == 0
    assert JudgeStage.CANDIDATE not in answer.cost.stages
    stages = {JudgeStage.WAIT, JudgeStage.OPPONENT, JudgeStage.FILL, JudgeStage.REFERENCE, JudgeStage.COMPARISON}
    assert stages <= set(answer.cost.stages)
    assert JudgeStage.COMPILE in answer.cost.stages or answer.baselines["n40000"]["compile"] is None
