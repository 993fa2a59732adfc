"""Evaluations of a problem whose reference updates an input in place, such as a KV cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.model.verdict import Verdict
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import judge, write_cpp, write_pytorch

pytestmark = pytest.mark.xdist_group("judge")

REFERENCE = "def run(cache, k, pos):\n    cache[pos] = k\n    return cache.sum(-1)\n"
ROWS = """
#include <cstdint>
extern "C" void scale(const float* cache, const float* k, int64_t pos, float* sums, float* out, int64_t n) {
    (void)cache;
    UPDATE
    for (int64_t i = 0; i < n; ++i) {
        float sum = 0;
        for (int64_t j = 0; j < 64; ++j) sum += i == pos ? k[j] : out[i * 64 + j];
        sums[i] = sum;
    }
}
"""
UPDATE = "for (int64_t j = 0; j < 64; ++j) out[pos * 64 + j] = k[j];"


def write_cache(directory: Path, *, declared: bool = True) -> Path:
    """Write a problem that replaces one row of a cache and sums every row."""
    root = directory / "made" / "cache"
    root.mkdir(parents=True)
    cache = {"shape": ["n", "64"], "dtype": "float32"}
    definition = {
        "name": "cache",
        "axes": {"n": {"type": "var"}},
        "inputs": {
            "cache": cache,
            "k": {"shape": ["64"], "dtype": "float32"},
            "pos": {"shape": None, "dtype": "int64"},
        },
        "outputs": {
            "sums": {"shape": ["n"], "dtype": "float32"},
            "out": {**cache, "x_updates": "cache"} if declared else cache,
        },
        "reference": REFERENCE if declared else REFERENCE.replace("(-1)", "(-1), cache"),
    }
    (root / "definition.json").write_text(json.dumps(definition))
    inputs = {"cache": {"type": "random"}, "k": {"type": "random"}, "pos": {"type": "scalar", "value": 3}}
    line = {"uuid": "n1000", "axes": {"n": 1000}, "inputs": inputs, "tolerance": {"max_atol": 1e-3, "max_rtol": 1e-4}}
    (root / "workload.jsonl").write_text(json.dumps(line) + "\n")
    return root


def test_a_solution_that_updates_the_changed_row_passes(court: JudgeProcess, tmp_path: Path) -> None:
    solution = write_cpp(tmp_path / "solution", ROWS.replace("UPDATE", UPDATE))
    answer = judge(court, write_cache(tmp_path), solution, max_judge_s=20.0)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.workloads[0].checked > 0


@pytest.mark.slow
def test_a_missing_update_fails_although_the_matched_ratio_holds(court: JudgeProcess, tmp_path: Path) -> None:
    answer = judge(court, write_cache(tmp_path), write_cpp(tmp_path / "solution", ROWS.replace("UPDATE", "")))
    assert answer.verdict is Verdict.INCORRECT_NUMERICAL
    assert "output `out" in str(answer.reason)


@pytest.mark.slow
def test_an_undeclared_update_is_refused_with_the_declaration_as_the_fix(court: JudgeProcess, tmp_path: Path) -> None:
    answer = judge(court, write_cache(tmp_path, declared=False), write_cpp(tmp_path / "solution", ROWS))
    assert answer.verdict is Verdict.INVALID_REFERENCE
    assert "changes its input `cache` in place" in str(answer.reason)
    assert '"x_updates": "cache"' in str(answer.reason)


@pytest.mark.slow
@pytest.mark.parametrize("passing", [True, False], ids=["passing", "returning"])
def test_python_updates_the_output_or_returns_the_whole(court: JudgeProcess, tmp_path: Path, passing: bool) -> None:
    source = "def run(cache, k, pos, sums, out):\n    out[pos] = k\n    sums.copy_(out.sum(-1))\n"
    if not passing:
        source = "def run(cache, k, pos):\n    out = cache.clone()\n    out[pos] = k\n    return out.sum(-1), out\n"
    solution = write_pytorch(tmp_path / "solution", source, destination_passing=passing)
    answer = judge(court, write_cache(tmp_path), solution)
    assert answer.verdict is Verdict.PASSED, answer.reason


@pytest.mark.slow
def test_an_input_stays_sealed_though_it_is_declared_as_updated(court: JudgeProcess, tmp_path: Path) -> None:
    source = ROWS.replace("(void)cache;", "((float*)cache)[0] = 1;").replace("UPDATE", UPDATE)
    answer = judge(court, write_cache(tmp_path), write_cpp(tmp_path / "solution", source))
    assert answer.verdict is Verdict.RUNTIME_ERROR
    assert "inputs are read-only" in str(answer.reason)


@pytest.mark.slow
def test_both_ways_to_run_the_reference_are_baselines(court: JudgeProcess, tmp_path: Path) -> None:
    answer = judge(court, write_cache(tmp_path), None)
    assert answer.verdict is Verdict.PASSED, answer.reason
    times = answer.baselines["n1000"]
    assert times["eager"] is not None
    assert times["compile"] is not None
