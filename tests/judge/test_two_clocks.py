"""A device with two clocks: both measure baselines, and a candidate races the fastest baseline by its clock."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.judge.baseline import baselines
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import load_reference
from harness.judge.runners import BaselineFailed, RunnerFailed
from harness.model.verdict import Verdict
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import judge, judge_with_own_locks, write_cpp, write_problem, write_pytorch
from tests.judge.planner_stand_in import planner_of
from tests.judge.problem_in_memory import problem, tensor

pytestmark = pytest.mark.xdist_group("judge")

_JUDGE = Path(__file__).with_name("two_clocks.py")
_MUL = "import torch\ndef run(x, factor, y, **params):\n    torch.mul(x, factor, out=y)\n"


@pytest.fixture(scope="module")
def two_clocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    command = {"HARNESS_JUDGE_COMMAND": shlex.join([sys.executable, str(_JUDGE)])}
    with judge_with_own_locks("cpu", tmp_path_factory.mktemp("two-clocks"), environment=command) as process:
        yield process


@pytest.mark.slow
def test_baselines_are_measured_by_both_clocks(two_clocks: JudgeProcess, tmp_path: Path) -> None:
    scale = write_problem(tmp_path)
    write_cpp(scale / "baseline")
    answer = judge(two_clocks, scale, None)
    assert answer.verdict is Verdict.PASSED, answer.reason
    first, second = answer.baselines["n40000"], answer.sealed_baselines["n40000"]
    for variant in ("eager", "compile"):
        assert (second[variant] or 0.0) > 10 * (first[variant] or 0.0) > 0.0, answer.environment  # 100 ticks
    assert first["baseline"] is not None
    assert second["baseline"] is None
    environment = answer.environment.model_dump()
    assert "missing_baselines" not in environment
    assert "baseline/ is in cpp, which does not run" in environment["missing_sealed_baselines"]["baseline"]
    assert answer.workloads[0].baseline_us == min(time for time in first.values() if time)


@pytest.mark.slow
def test_a_sealed_candidate_races_the_fastest_by_its_clock(two_clocks: JudgeProcess, tmp_path: Path) -> None:
    scale = write_problem(tmp_path, sizes=(40_000, 50_000))
    write_pytorch(scale / "baseline", _MUL)
    raced = {"baseline": {"n40000": "eager", "n50000": "eager"}, "sealed_baseline": {"n40000": "baseline"}}
    sealed = write_pytorch(tmp_path / "sealed", _MUL, params={"sealed": 1})
    answer = judge(two_clocks, scale, sealed, **raced)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert [workload.variant for workload in answer.workloads] == [
        "baseline",
        "eager",
    ]  # the only baseline with a measurement for n50000
    assert all((workload.baseline_us or 0.0) > 100.0 for workload in answer.workloads)
    bounded = judge(two_clocks, scale, write_pytorch(tmp_path / "bounded", _MUL), **raced)
    assert bounded.verdict is Verdict.PASSED, bounded.reason
    assert [workload.variant for workload in bounded.workloads] == ["eager", "eager"]


def test_a_device_with_one_clock_has_one_fastest_baseline(court: JudgeProcess, tmp_path: Path) -> None:
    raced = {"baseline": {"n40000": "eager"}, "sealed_baseline": {"n40000": "baseline"}}
    answer = judge(court, write_problem(tmp_path), write_cpp(tmp_path / "solution"), **raced)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.workloads[0].variant == "eager"


class _Opponents:
    """Stand-in for the reference's runners; each fails at the eager variant and is not used again."""

    def __init__(self) -> None:
        self.started = 0
        self._alive = False

    def compile_ahead(self, *_: object) -> None:
        """Do nothing, because there is nothing to compile."""

    def trusted(self, *_: object) -> _Opponents:
        self.started += not self._alive
        self._alive = True
        return self

    def drop(self, *_: object) -> None:
        self._alive = False

    def prepare(self, _workload: object, _layout: object, _slots: object, variant: str, _plan: object) -> None:
        if variant == "eager":
            broken = RunnerFailed(Verdict.RUNTIME_ERROR, "killed by SIGSEGV")
            raise BaselineFailed(broken.reason, broken=broken)


def test_a_reference_that_fails_on_one_clock_is_missing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = tensor("float32", "n")
    scale = problem({"x": vector}, {"y": vector}, "def run(x):\n    return x * 2\n", {"n": 4})
    reference = load_reference(scale)
    clock: Any = SimpleNamespace(
        hardware=SimpleNamespace(summed=None),
        runners=SimpleNamespace(settle=lambda: None),
        memory=lambda *_: SimpleNamespace(capacity=4),
    )
    monkeypatch.setattr(baselines, "_screening_us", lambda *_: 5.0)
    monkeypatch.setattr(baselines, "_full_us", lambda *_: 5.0)

    def bench(opponents: Any) -> baselines.Bench:
        source = InputSource(scale, reference=reference)
        planner = planner_of(scale, None).planner
        return baselines.Bench(scale, reference, source, clock, opponents, planner, lambda _: None)

    opponents = _Opponents()
    second = bench(opponents)
    assert second.times() == {"w": {"eager": None, "compile": 5.0}}
    assert second.missing == {"eager": "workload w: killed by SIGSEGV"}
    assert opponents.started == 2  # the failed runner is not used again
    with pytest.raises(BaselineFailed, match="the reference failed on workload w: killed by SIGSEGV"):
        bench(_Opponents()).times(must_run="eager")
