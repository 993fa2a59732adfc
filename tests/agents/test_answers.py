"""The answer to a submission is short, numeric, and names the next step."""

from __future__ import annotations

from typing import Any

from harness.agents.answers import attempts_text, outcome_text
from harness.ledger.candidates import TriedCandidate
from harness.model.entry import Entry
from harness.model.judging import Summary, WorkloadResult
from harness.model.verdict import Verdict
from tests.agents.conftest import entry

AXES = {"a": "rows=8", "b": "rows=4096"}


def work(uuid: str, **fields: Any) -> WorkloadResult:
    return WorkloadResult(uuid=uuid, **{"verdict": Verdict.PASSED, **fields})


def passed(*workloads: WorkloadResult, speedup: float = 1.5) -> Entry:
    summary = Summary(speedup=speedup, speedup_ci95=(speedup - 0.1, speedup + 0.1), score=0.6, passed=2, of=2)
    return entry(Verdict.PASSED, speedup).model_copy(update={"summary": summary, "workloads": workloads})


def test_a_pass_names_what_limits_and_where() -> None:
    slow = work("a", latency_us=10.0, baseline_us=12.0, speedup=1.2, sol_us=1.0, variant="eager")
    fast = work("b", latency_us=50.0, baseline_us=100.0, speedup=2.0, sol_us=40.0, variant="compile")
    text = outcome_text(passed(fast, slow), best=1.4, axes=AXES)
    assert text.splitlines()[0].startswith("PASSED 1.500x over the baseline (1.400 to 1.600, score 0.60 of 1")
    assert "a new best (before: 1.400x)" in text
    assert "  rows=8: 10.00 / 12.00 (eager) / 1.00 = 1.20x" in text
    assert text.index("rows=8") < text.index("rows=4096"), "the worst first"
    assert "limits: rows=8 runs at 10% of its bound" in text
    assert "the smallest" in text
    assert "not the best (best: 2.000x)" in outcome_text(passed(fast), best=2.0, axes=AXES)
    assert "only less work makes it faster" in outcome_text(passed(fast), best=None, axes=AXES)


def test_a_failure_names_the_first_failing_workload_and_what_to_do() -> None:
    wrong = work("b", verdict=Verdict.INCORRECT_NUMERICAL, reason="output[3, 5] is 2.0, expected 1.0")
    failure = entry(Verdict.INCORRECT_NUMERICAL, None).model_copy(update={"workloads": (work("a"), wrong)})
    text = outcome_text(failure, best=None, axes=AXES)
    assert "first failing: rows=4096: output[3, 5] is 2.0, expected 1.0" in text
    assert text.count("expected 1.0") == 1, "a reason is given once"
    assert "to do: read the pattern" in text


def test_answers_stay_short_for_any_compiler_output() -> None:
    failure = entry(Verdict.COMPILE_ERROR, None).model_copy(update={"reason": "error " * 10_000})
    assert len(outcome_text(failure, best=None, axes=AXES)) < 1500
    results = tuple(work(str(n), latency_us=1.0, baseline_us=2.0, speedup=2.0) for n in range(500))
    assert len(outcome_text(passed(*results), best=None, axes={}).splitlines()) < 15


def test_history_shows_the_best_first_and_searches() -> None:
    candidates = (
        TriedCandidate("t1", "w01", Verdict.COMPILE_ERROR, reason="no such type", message="use half2", commit="c1"),
        TriedCandidate("t2", "w02", Verdict.PASSED, 1.2, message="wider loads", commit="c2"),
        TriedCandidate("t3", "w02", Verdict.PASSED, 1.9, message="one pass", commit="c3"),
        TriedCandidate("t4", "w03", None, message="split the rows", commit="c4"),
    )
    lines = attempts_text(candidates, ("w01: half2 overflows",), "").splitlines()
    assert [line.split()[0] for line in lines] == ["c3", "c2", "c1", "c4", "lesson:"]
    assert attempts_text(candidates, ("w01: half2 overflows",), "half2").splitlines() == [
        "c1 w01: COMPILE_ERROR: no such type | use half2",
        "lesson: w01: half2 overflows",
    ]
    assert "there is no attempt on this problem with 'tma' yet" in attempts_text(candidates, (), "tma")
