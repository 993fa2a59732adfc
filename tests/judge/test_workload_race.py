"""A lack of device memory in a race, its second attempt, and failures of the baseline, which are no verdicts."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
import torch

from harness.errors import EXIT_OUT_OF_MEMORY, OutOfMachineMemoryError
from harness.judge.baseline.baseline_runners import Opponents
from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.correctness import Comparison
from harness.judge.devices.interface import Batch, Calibration, Connection, Memory, RunnerTrust
from harness.judge.input_data.inputs import InputSource
from harness.judge.memory_plan import MemoryState
from harness.judge.reference import load_reference
from harness.judge.runners import BaselineFailed, NoDeviceMemory, Runner, RunnerFailed, RunnerOutOfMemory
from harness.judge.sides import Side, Staged
from harness.judge.workload_race import Task, WorkloadRace
from harness.model.judging import JudgeRequest, WorkloadResult
from harness.model.verdict import Trust, Verdict
from harness.runner.messages import Program
from harness.sol.roofline import NoBoundError
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import judge, judge_request, judge_with_own_locks, write_cpp, write_problem, write_pytorch
from tests.judge.planner_stand_in import memory_state, planner_of
from tests.judge.problem_in_memory import problem, tensor

CANDIDATE, BASELINE = RunnerTrust.CANDIDATE, RunnerTrust.REFERENCE
_CANDIDATES_PROCESS = 4_000_000_000
"""A process id that does not exist."""


class Race:
    """A race on a stand-in device: each call takes 1 us, and tests choose what fails.

    Args:
        state: use of the device's memory.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: MemoryState | None) -> None:
        vector = tensor("float32", "n")
        sample = problem({"x": vector}, {"y": vector}, "def run(x):\n    return x + 1\n", {"n": 4})
        self.parts = planner_of(sample, state)
        self.clock = self.parts.clock
        self.fails_to_prepare: dict[RunnerTrust, list[Exception]] = {CANDIDATE: [], BASELINE: []}
        """Exceptions of the next preparations by side."""
        self.crashes_in_batch: tuple[RunnerTrust, int, Exception] | None = None
        """A side, the number of its batch, and the exception there."""
        self.batches = {CANDIDATE: 0, BASELINE: 0}
        self.started: list[Mock] = []
        """Runners of the candidate."""
        self._monkeypatch = monkeypatch
        self._prepare_clock()
        check = create_autospec(WorkloadCheck, instance=True)
        check.check.return_value, check.note = Comparison(), None
        check.sets = create_autospec(WorkloadSets, instance=True)
        check.sets.stress.return_value = ("large",)
        monkeypatch.setattr(self.parts.planner, "check_of", lambda *_: check)
        baseline = Connection(create_autospec(Runner, instance=True), BASELINE)
        opponents = create_autospec(Opponents, instance=True)
        opponents.trusted.return_value = Side(self.clock, baseline, 1.0, {}, is_baseline=True)
        device = SimpleNamespace(clock=self.clock, hardware=self.parts.hardware)
        resources: Any = SimpleNamespace(
            device=device,
            opponents=lambda _: opponents,
            serve_check=lambda: 0.0,
            bounds=lambda *_: NoBoundError("not traced"),
            measure_hardware_again=lambda: None,
        )
        reference = load_reference(sample)
        request = JudgeRequest(
            id="1", kind="evaluation", problem=sample.key, problem_dir="p", problem_digest=sample.digest,
            solution_dir="s", half_width=0.5, max_judge_s=600.0,
        )  # fmt: skip
        source = InputSource(sample, reference=reference)
        self.opponents = opponents
        self._task = Task(resources, request, sample, reference, source, self.parts.planner, lambda _: None)

    def _prepare_clock(self) -> None:
        clock, hardware, runners = self.clock, self.parts.hardware, self.parts.runners
        clock.hardware, clock.runners = hardware, runners
        clock.calibration, clock.separate_calls, clock.work_outlasts_stop = Calibration(0.0, 0.0), False, False
        clock.trust.return_value, clock.process_error.return_value = Trust.BOUNDED, 0.01
        clock.untried.return_value = 0
        hardware.map_slots.side_effect = lambda work, slots: [work(slot) for slot in slots]
        runners.take.side_effect = self._start
        clock.open.side_effect = lambda runner, _, trust: Connection(runner, trust)
        clock.memory.return_value = create_autospec(Memory, instance=True)
        clock.memory.return_value.capacity = 64
        clock.prepare.side_effect = self._prepare
        clock.time_calls.side_effect = self._batch

    def _start(self, *_: object, **__: object) -> Mock:
        runner: Mock = create_autospec(Runner, instance=True)
        runner.first_process, runner.stage = _CANDIDATES_PROCESS, Path()
        self.started.append(runner)
        return runner

    def _prepare(self, connection: Connection, *_: object, **__: object) -> None:
        failures = self.fails_to_prepare[connection.trust]
        if failures:
            raise failures.pop(0)

    def _batch(self, connection: Connection, memory: Memory, slots: Sequence[int], within_s: float) -> Batch:
        del memory, within_s
        self.batches[connection.trust] += 1
        if self.crashes_in_batch is not None:
            side, number, failure = self.crashes_in_batch
            if (connection.trust, self.batches[connection.trust]) == (side, number):
                raise failure
        return Batch(len(slots) * 1_000, len(slots) * 1_000, 0)

    def race_own_baseline(self, *starts: Side | Exception) -> None:
        """Let the candidate race the problem's `baseline/`, whose starts have these results."""
        self.opponents.own.side_effect = starts
        request = self._task.request.model_copy(update={"baseline": {"w": "baseline"}})
        self._task = dataclasses.replace(self._task, request=request)

    def own_side(self) -> Side:
        """Return a runner of `baseline/`."""
        return Side(self.clock, Connection(create_autospec(Runner, instance=True), BASELINE), 1.0, {}, is_baseline=True)

    def results(self) -> tuple[WorkloadResult, ...]:
        staged = Staged(lambda _: Program("pytorch", "run"), 1.0)
        return WorkloadRace(self._task, staged, self.clock).outcome().results

    @property
    def made_room(self) -> int:
        """Number of times that the planner ended what is kept."""
        return sum(call[0] == "end_kept" for call in self.parts.calls.mock_calls)


@pytest.fixture
def race_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryState | None], Race]:
    return lambda state: Race(monkeypatch, state)


RaceOn = Callable[[MemoryState | None], Race]


def _lack() -> list[Exception]:
    return [
        NoDeviceMemory("no placements"),
        torch.OutOfMemoryError("judge"),
        RunnerOutOfMemory(Verdict.RUNTIME_ERROR, "OutOfMemoryError: runner"),
    ]


KINDS = pytest.mark.parametrize("kind", range(3), ids=["placements", "judge", "runner"])
SIDES = pytest.mark.parametrize("side", [CANDIDATE, BASELINE])
STATES = pytest.mark.parametrize("state", [None, memory_state(), memory_state(foreign=None)])


def test_a_race_without_a_lack_of_memory_makes_no_room(race_on: RaceOn) -> None:
    race = race_on(memory_state())
    assert [result.verdict for result in race.results()] == [Verdict.PASSED]
    assert (race.made_room, len(race.started)) == (0, 1)


@KINDS
@SIDES
@STATES
def test_a_first_lack_of_memory_leads_to_a_sparing_attempt_that_counts(
    race_on: RaceOn, kind: int, side: RunnerTrust, state: MemoryState | None
) -> None:
    race = race_on(state)
    race.fails_to_prepare[side] = [_lack()[kind]]
    assert [result.verdict for result in race.results()] == [Verdict.PASSED]
    assert race.made_room == 1
    plans = [call.kwargs["plan"] for call in race.clock.prepare.call_args_list]
    if state is not None:
        assert [plan.sparing for plan in plans[-2:]] == [True, True], "both sides use as little as possible"
        assert not plans[0].sparing
    assert len(race.started) == (2 if side is CANDIDATE else 1), "the candidate's process starts again"


def test_a_lack_in_a_timed_batch_leads_to_a_second_attempt(race_on: RaceOn) -> None:
    race = race_on(memory_state())
    race.crashes_in_batch = CANDIDATE, 20, RunnerOutOfMemory(Verdict.RUNTIME_ERROR, "OutOfMemoryError: late")
    assert [result.verdict for result in race.results()] == [Verdict.PASSED]
    assert (race.made_room, len(race.started)) == (1, 2)


def test_a_candidate_that_lacks_memory_twice_has_failed(race_on: RaceOn) -> None:
    race = race_on(memory_state())
    race.fails_to_prepare[CANDIDATE] = [_lack()[2], _lack()[2]]
    (result,) = race.results()
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert result.reason == "OutOfMemoryError: runner (its processes hold 0.0 GiB)"
    assert race.made_room == 1


@KINDS
def test_a_candidate_that_holds_the_memory_has_failed_also_if_the_judge_lacks_it(
    race_on: RaceOn, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr("harness.judge.memory_planner.is_descendant", lambda pid, ancestor: pid == ancestor)
    race = race_on(memory_state(processes={_CANDIDATES_PROCESS: 60 << 30}))
    race.fails_to_prepare[CANDIDATE] = [_lack()[kind], _lack()[kind]]
    (result,) = race.results()
    assert result.verdict is Verdict.RUNTIME_ERROR
    assert "its processes hold 60.0 GiB" in (result.reason or "")


@KINDS
@STATES
def test_an_opponent_that_lacks_memory_twice_is_no_verdict(
    race_on: RaceOn, kind: int, state: MemoryState | None
) -> None:
    race = race_on(state)
    race.fails_to_prepare[BASELINE] = [_lack()[kind], _lack()[kind]]
    expected = OutOfMachineMemoryError if state is None or state.is_shared else BaselineFailed
    with pytest.raises(expected, match="device memory does not suffice"):
        race.results()
    assert race.made_room == 1
    assert race.clock.close.call_count == len(race.started), "the candidate's processes have ended"


@pytest.mark.parametrize("state", [None, memory_state()])
def test_a_lack_before_the_first_workload_is_no_verdict(race_on: RaceOn, state: MemoryState | None) -> None:
    race = race_on(state)
    race.clock.work_outlasts_stop = True  # the baseline is timed alone first
    race.fails_to_prepare[BASELINE] = [_lack()[0], _lack()[0]]
    with pytest.raises(OutOfMachineMemoryError if state is None else BaselineFailed, match="does not suffice"):
        race.results()
    assert race.started == []


def test_a_baseline_directory_is_loaded_again_for_the_second_attempt(race_on: RaceOn) -> None:
    race = race_on(memory_state())
    first, second = race.own_side(), race.own_side()
    race.race_own_baseline(first, second)
    race.fails_to_prepare[BASELINE] = [_lack()[0]]
    assert [result.verdict for result in race.results()] == [Verdict.PASSED]
    closed = [call.args[0] for call in race.clock.close.call_args_list]
    assert (closed.count(first.connection), closed.count(second.connection)) == (1, 1)


@pytest.mark.parametrize(
    "failure", [BaselineFailed("baseline/ does not load"), RunnerOutOfMemory(Verdict.RUNTIME_ERROR, "OutOfMemoryError")]
)
def test_a_baseline_directory_that_does_not_load_again_ends_once(race_on: RaceOn, failure: Exception) -> None:
    """Its outputs' memory would otherwise be given to two runners."""
    race = race_on(memory_state())
    first = race.own_side()
    race.race_own_baseline(first, failure)
    race.fails_to_prepare[BASELINE] = [_lack()[0]]
    if isinstance(failure, RunnerOutOfMemory):
        failure.of_baseline = True
    with pytest.raises(BaselineFailed):
        race.results()
    assert [call.args[0] for call in race.clock.close.call_args_list].count(first.connection) == 1


@pytest.mark.parametrize("batch", [1, 3, 25])
def test_a_crash_of_the_baseline_is_no_verdict(race_on: RaceOn, batch: int) -> None:
    race = race_on(memory_state())
    race.crashes_in_batch = BASELINE, batch, RunnerFailed(Verdict.RUNTIME_ERROR, "killed by SIGSEGV")
    with pytest.raises(BaselineFailed, match="the baseline failed: killed by SIGSEGV") as failed:
        race.results()
    assert failed.value.broken is not None
    assert race.made_room == 0


def test_a_crash_of_the_candidate_in_a_timed_batch_is_its_verdict(race_on: RaceOn) -> None:
    race = race_on(memory_state())
    race.crashes_in_batch = CANDIDATE, 20, RunnerFailed(Verdict.RUNTIME_ERROR, "killed by SIGSEGV")
    (result,) = race.results()
    assert (result.verdict, result.reason) == (Verdict.RUNTIME_ERROR, "killed by SIGSEGV")


# -- the real judge on a CPU

_FAULTY = Path(__file__).with_name("memory_faults.py")


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the name of the fault."""
    return tmp_path_factory.mktemp("fault") / "name"


@pytest.fixture(scope="module")
def faulty(
    court: JudgeProcess, tmp_path_factory: pytest.TempPathFactory, judge_cache: Path, fault: Path
) -> Iterator[JudgeProcess]:
    """A judge with faults. The usual one starts first, because it must not inherit the environment of this one."""
    del court
    environment = {
        "HARNESS_JUDGE_COMMAND": shlex.join([sys.executable, str(_FAULTY)]),
        "HARNESS_TEST_FAULT": str(fault),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    directory = tmp_path_factory.mktemp("faulty")
    with judge_with_own_locks("cpu", directory, cache=judge_cache, environment=environment) as process:
        yield process


@pytest.mark.xdist_group("judge")
def test_a_judge_that_lacks_memory_once_judges_again(faulty: JudgeProcess, fault: Path, tmp_path: Path) -> None:
    fault.write_text("once")
    """The baseline lacks memory on the first workload, and the candidate on the second."""
    answer = judge(faulty, write_problem(tmp_path, sizes=(40_000, 50_000)), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert fault.with_name("failures").read_text().split() == ["reference", "candidate"]


@pytest.mark.xdist_group("judge")
def test_a_device_that_is_too_small_for_the_baseline_is_no_verdict(
    faulty: JudgeProcess, fault: Path, tmp_path: Path
) -> None:
    fault.write_text("baseline-alone")
    answer = judge(faulty, write_problem(tmp_path), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.INVALID_REFERENCE
    assert "the device is too small for workload n40000" in (answer.reason or "")


@pytest.mark.xdist_group("judge")
def test_a_judge_ends_if_its_machine_lacks_memory_for_the_baseline(
    judge_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "fault"
    fault.write_text("baseline")
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("HARNESS_TEST_FAULT", str(fault))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    request = judge_request(write_problem(tmp_path), write_cpp(tmp_path / "solution")).model_dump_json()
    ended = subprocess.run(
        [sys.executable, str(_FAULTY), "--cache", str(judge_cache)],
        input=f"{request}\n", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == EXIT_OUT_OF_MEMORY, ended.stderr
    assert "device memory does not suffice (no memory for placements)" in ended.stderr
    assert '"verdict"' not in ended.stdout


@pytest.mark.xdist_group("judge")
def test_a_candidate_that_raises_out_of_memory_errors_on_a_cpu_has_failed(court: JudgeProcess, tmp_path: Path) -> None:
    source = "import torch\ndef run(x, factor, y):\n    raise torch.OutOfMemoryError('x')\n"
    answer = judge(court, write_problem(tmp_path), write_pytorch(tmp_path / "solution", source))
    assert answer.verdict is Verdict.RUNTIME_ERROR
    assert "OutOfMemoryError: x" in (answer.reason or "")


_CRASHES_LATE = """
import os
import torch
calls = 0

def run(x, factor, y):
    global calls
    calls += 1
    if calls == 400:
        os.abort()
    torch.mul(x, factor, out=y)
"""


@pytest.mark.xdist_group("judge")
def test_a_baseline_that_crashes_while_it_is_timed_is_no_verdict(court: JudgeProcess, tmp_path: Path) -> None:
    scale = write_problem(tmp_path)
    write_pytorch(scale / "baseline", _CRASHES_LATE)
    answer = judge(court, scale, write_cpp(tmp_path / "solution"), baseline={"n40000": "baseline"})
    assert answer.verdict is Verdict.INVALID_REFERENCE
    assert answer.reason == "the baseline failed: killed by SIGABRT"
