"""The problem's own `baseline/` in a measurement: its runner ends once, and another replaces it after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from harness.judge.baseline import baselines
from harness.judge.baseline.baseline_runners import Opponents
from harness.judge.devices.interface import Clock, Connection, RunnerPool, RunnerTrust
from harness.judge.runners import BaselineFailed, Runner, RunnerFailed, RunnerOutOfMemory
from harness.judge.sides import Side, Staged, load
from harness.model.verdict import Verdict
from harness.runner.messages import Program
from tests.judge.problem_in_memory import problem, tensor
from tests.judge.test_baseline_variants import Readings, ThreeWorkloads, bench, broken


class OwnRunner(ThreeWorkloads):
    """Stand-in for a runner of `baseline/`."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class WithOwn(ThreeWorkloads):
    """Stand-in for the runners of a problem with a `baseline/`, whose first starts may fail."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)
        self.starts = 0
        self.runners: list[OwnRunner] = []

    def trusted(self, problem: object, variant: str) -> ThreeWorkloads:
        assert variant != "baseline", "the reference does not stand for it"
        return super().trusted(problem, variant)

    def own(self, _: object) -> OwnRunner:
        self.starts += 1
        if self.failures:
            raise self.failures.pop(0)
        self.runners.append(OwnRunner())
        return self.runners[-1]


TIMES: dict[str, float | Exception] = {"eager": 1.0, "compile": 1.0, "baseline": 1.0}


@pytest.fixture(autouse=True)
def _has_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "has_own_baseline", lambda _: True)


def _out_of_memory() -> RunnerOutOfMemory:
    return RunnerOutOfMemory(Verdict.RUNTIME_ERROR, "OutOfMemoryError: full")


def test_one_runner_measures_all_workloads_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    Readings(monkeypatch, TIMES)
    opponents = WithOwn()
    table = bench(opponents).times()
    assert [table[uuid]["baseline"] for uuid in "abc"] == [1.1, 1.1, 1.1]
    assert [runner.closed for runner in opponents.runners] == [1]


def test_a_baseline_that_does_not_load_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Readings(monkeypatch, TIMES)
    opponents = WithOwn(BaselineFailed("baseline/ does not build: no"))
    measured = bench(opponents)
    table = measured.times()
    assert [table[uuid]["baseline"] for uuid in "abc"] == [None, None, None]
    assert measured.missing == {"baseline": "baseline/ does not build: no"}
    assert opponents.starts == 1


def test_a_runner_that_broke_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = Readings(monkeypatch, TIMES)
    readings.fails_in_full = {("b", "baseline"): broken(Verdict.RUNTIME_ERROR, "killed by SIGSEGV")}
    opponents = WithOwn()
    measured = bench(opponents)
    table = measured.times()
    assert [table[uuid]["baseline"] for uuid in "abc"] == [1.1, None, 1.1]
    assert measured.missing == {"baseline": "workload b: killed by SIGSEGV"}
    assert [runner.closed for runner in opponents.runners] == [1, 1]


def test_a_start_without_memory_is_repeated_after_room_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    Readings(monkeypatch, TIMES)
    opponents = WithOwn(_out_of_memory())
    measured = bench(opponents)
    assert measured.times()["a"]["baseline"] == 1.1
    assert (opponents.starts, measured.missing) == (2, {})


def test_a_failed_second_start_does_not_end_the_first_runner_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = Readings(monkeypatch, TIMES)
    readings.fails_in_full = {("a", "baseline"): _out_of_memory()}
    opponents = WithOwn()
    start = opponents.own

    def fail_second(sample: object) -> OwnRunner:
        if opponents.runners:
            raise BaselineFailed("baseline/ does not load")
        return start(sample)

    monkeypatch.setattr(opponents, "own", fail_second)
    measured = bench(opponents)
    assert measured.times()["a"]["baseline"] is None
    assert [runner.closed for runner in opponents.runners] == [1]


@pytest.mark.parametrize("is_baseline", [False, True])
def test_a_lack_of_memory_while_a_program_loads_has_its_side(*, is_baseline: bool) -> None:
    clock = create_autospec(Clock, instance=True)
    clock.open.side_effect = _out_of_memory()
    runner = create_autospec(Runner, instance=True)
    runner.stage = Path()
    with pytest.raises(RunnerOutOfMemory) as lack:
        load(clock, runner, Staged(lambda _: Program("x"), 1.0), RunnerTrust.REFERENCE, is_baseline=is_baseline)
    assert lack.value.of_baseline is is_baseline


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(_out_of_memory(), RunnerOutOfMemory), (RunnerFailed(Verdict.TIMEOUT, "late"), BaselineFailed)],
)
def test_a_reference_that_gets_no_memory_has_not_failed(
    failure: Exception, expected: type[Exception], tmp_path: Path
) -> None:
    vector = tensor("float32", "n")
    sample = problem({"x": vector}, {"y": vector}, "def run(x):\n    return x\n", {"n": 4})
    clock: Any = create_autospec(Clock, instance=True)
    clock.runners = create_autospec(RunnerPool, instance=True)
    clock.runners.take.return_value.stage = tmp_path
    opponents = Opponents(clock, tmp_path, "none")
    clock.open.side_effect = failure
    with pytest.raises(expected):
        opponents.trusted(sample, "eager")
    clock.open.side_effect = None
    clock.open.return_value = Connection(create_autospec(Runner, instance=True), RunnerTrust.REFERENCE)
    assert isinstance(opponents.trusted(sample, "eager"), Side), "it may load later"
