from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

import pytest

from harness.judge.baseline.slowdown import slowed_by
from harness.judge.verdict import with_baseline_alone
from harness.model.judging import WorkloadResult
from harness.model.verdict import Verdict
from harness.workspace.blocking_judge import judge_process
from tests.judge.courtroom import judge, write_cpp, write_problem

ALONE = (100.0, 101.0, 99.0, 100.5, 99.5, 100.0)


def test_a_baseline_that_is_slower_beside_a_candidate_shows() -> None:
    beside = [140.0, 141.0, 139.0, 140.5]
    assert slowed_by(ALONE, beside) == pytest.approx(math.log(1.4), rel=0.01)


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param([101.0, 102.0, 100.0, 101.5], id="below-3-percent"),
        pytest.param([100.0, 180.0, 95.0, 110.0], id="within-its-own-noise"),
        pytest.param([70.0, 71.0, 70.5, 70.0], id="faster"),
        pytest.param([140.0], id="one-block"),
    ],
)
def test_noise_and_a_faster_baseline_do_not(beside: list[float]) -> None:
    assert slowed_by(ALONE, beside) == 0.0


def test_a_baseline_that_was_not_timed_alone_has_no_slowdown() -> None:
    assert slowed_by((), [140.0, 141.0]) == 0.0


@pytest.mark.slow
@pytest.mark.xdist_group("judge")
@pytest.mark.parametrize("still_fast", [True, False], ids=["slowed-by-the-candidate", "slowed-by-its-host"])
def test_only_a_slowdown_that_ends_with_the_candidate_widens_the_interval(
    still_fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("HARNESS_TEST_STILL_FAST", str(int(still_fast)))
    stand_in = Path(__file__).with_name("slowed_baseline.py")
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", shlex.join([sys.executable, str(stand_in)]))
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as process:
        answer = judge(process, write_problem(tmp_path), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.PASSED, answer.reason
    (workload,) = answer.workloads
    assert workload.process_error is not None
    assert (workload.process_error > math.log(1.5)) == still_fast, workload.process_error


def test_a_result_has_the_latency_of_the_baseline_alone() -> None:
    result = WorkloadResult(uuid="w", verdict=Verdict.PASSED, baseline_us=2.0)
    alone = with_baseline_alone(result, [0.9e3, 1.1e3, 1e3, 1e3])
    assert alone.baseline_alone_us == pytest.approx(1.0, rel=0.01)
    assert alone.baseline_alone_ci95 is not None
    ci95_low, ci95_high = alone.baseline_alone_ci95
    assert 0.8 < ci95_low < 1.0 < ci95_high < 1.2
    assert with_baseline_alone(result, ()) == result
