"""`harness evaluate` and `harness baseline` on the command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import call_harness
from tests.judge.courtroom import KERNEL, write_cpp, write_problem
from tests.safetensors import write_safetensors
from tests.site import STUB


def _harness(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HARNESS_LOCK_DIR": str(tmp_path / "locks"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
        **variables,
    }
    return call_harness(*arguments, cwd=tmp_path, environment=environment)


@pytest.mark.slow
@pytest.mark.xdist_group("judge")
def test_a_solution_in_its_problem_is_judged_and_shown(tmp_path: Path, judge_cache: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(problem / "solutions" / "cpu")
    arguments = ("evaluate", str(solution), "--against", "eager", "--half-width", "0.5")
    completed = _harness(tmp_path, *arguments, XDG_CACHE_HOME=str(judge_cache.parent))
    assert completed.returncode == 0, completed.stderr
    heads, _, row, *_, last = completed.stdout.strip().splitlines()
    assert heads.split()[:2] == ["workload", "verdict"]
    assert row.split()[:2] == ["n40000", "PASSED"]
    assert last.startswith("PASSED: ")
    assert "x (" in last


@pytest.mark.slow
@pytest.mark.xdist_group("judge")
def test_a_wrong_solution_exits_with_1_and_the_reason(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    wrong = write_cpp(tmp_path / "wrong", KERNEL.replace("i = 0", "i = 1"))
    completed = _harness(tmp_path, "evaluate", str(wrong), "--problem", str(problem), "--against", "eager", "--json")
    assert completed.returncode == 1
    answer = json.loads(completed.stdout)
    assert answer["verdict"] == "INCORRECT_NUMERICAL"
    assert completed.stderr.startswith("harness: INCORRECT_NUMERICAL: workload n40000: output `y`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "missing"), "missing is neither a directory nor a commit, and this is no workspace"),
        (("evaluate", "their.json"), "their.json is a file"),
        (("evaluate", "."), "is not inside a problem directory"),
        (("evaluate", "made/scale"), "no solution.yaml in"),
        (("evaluate", "made/scale", "--solution", "their.json"), "their.json"),
        (("evaluate", "made/scale", "--device", "foo"), "--device, or `devices` in harness.yaml: no such device: foo"),
        (("baseline", "other/problem"), "no problem `other/problem`"),
        (("baseline", "made/scale", "--max-usd", "5"), "limit what --make starts; add --make"),
    ],
)
def test_an_invalid_path_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    write_problem(tmp_path)
    (tmp_path / "their.json").write_text("{}")
    completed = _harness(tmp_path, *arguments)
    assert completed.returncode == 2
    assert message in completed.stderr
    assert "Traceback" not in completed.stderr


def test_the_problems_own_solution_is_not_judged_in_place_of_an_empty_directory(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    write_cpp(problem / "solutions" / "cpu")
    (tmp_path / "empty").mkdir()
    completed = _harness(tmp_path, "evaluate", "empty", "--problem", str(problem), "--against", "eager")
    assert completed.returncode == 2
    assert f"no solution.yaml in {tmp_path / 'empty'}" in completed.stderr


def test_a_device_that_is_none_is_named(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(tmp_path / "solution")
    completed = _harness(tmp_path, "evaluate", str(solution), "--problem", str(problem), "--device", "tpu")
    assert completed.returncode == 2
    assert "no such device: tpu" in completed.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("judge")
def test_baselines_are_measured_once_and_the_fastest_is_raced(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(tmp_path / "solution")
    measured = _harness(tmp_path, "baseline", str(problem), "--json")
    assert measured.returncode == 0, measured.stderr
    (row,) = json.loads(measured.stdout)
    assert list(row) == ["uuid", "axes", "baselines", "baseline"]
    fastest = min(row["baselines"], key=lambda name: row["baselines"][name])
    assert row["baseline"] == fastest
    options = ("--problem", str(problem), "--json", "--half-width", "0.5")
    completed = _harness(tmp_path, "evaluate", str(solution), *options)
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["workloads"][0]["variant"] == fastest


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    """Set up the stub judge, which records its requests; two clocks measure its problem."""
    problem = write_problem(tmp_path)
    definition = json.loads((problem / "definition.json").read_text())
    (problem / "definition.json").write_text(json.dumps({**definition, "description": "stub: two-clocks"}))
    write_cpp(problem / "solutions" / "cpu")
    return {
        "HARNESS_JUDGE_COMMAND": shlex.join([sys.executable, str(STUB)]),
        "STUB_JUDGE_REQUESTS": str(tmp_path / "requests"),
    }


def _judge_requests(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "requests").read_text().splitlines()]


def test_a_candidate_is_raced_with_the_fastest_baseline_by_either_clock(tmp_path: Path, stub: dict[str, str]) -> None:
    for _ in range(2):
        completed = _harness(tmp_path, "evaluate", "made/scale/solutions/cpu", **stub)
        assert completed.returncode == 0, completed.stderr
    measured, first, second = _judge_requests(tmp_path)
    assert measured["kind"] == "baseline"
    for evaluation in (first, second):
        assert evaluation["baseline"] == {"n40000": "compile"}
        assert evaluation["sealed_baseline"] == {"n40000": "eager"}
    completed = _harness(tmp_path, "evaluate", "made/scale/solutions/cpu", "--against", "compile", **stub)
    assert completed.returncode == 0, completed.stderr
    assert (
        _judge_requests(tmp_path)[-1]["sealed_baseline"] == {}
    )  # the requested variant is the baseline of both clocks


def test_times_of_one_clock_only_are_measured_again(tmp_path: Path, stub: dict[str, str]) -> None:
    assert _harness(tmp_path, "evaluate", "made/scale/solutions/cpu", **stub).returncode == 0
    (cache_file,) = (tmp_path / "cache" / "kernel-harness" / "baselines").iterdir()
    cache_file.write_text(json.dumps({"n40000": {"eager": 1.0, "compile": 2.0}}))
    completed = _harness(tmp_path, "evaluate", "made/scale/solutions/cpu", **stub)
    assert completed.returncode == 0, completed.stderr
    assert [request["kind"] for request in _judge_requests(tmp_path)] == ["baseline", "evaluation"] * 2
    assert _judge_requests(tmp_path)[-1]["sealed_baseline"] == {"n40000": "eager"}


def test_baselines_are_shown_by_either_clock(tmp_path: Path, stub: dict[str, str]) -> None:
    completed = _harness(tmp_path, "baseline", "made/scale", **stub)
    assert completed.returncode == 0, completed.stderr
    heads, _, row = (re.split(r"\s{2,}", line.strip()) for line in completed.stdout.strip().splitlines())
    assert dict(zip(heads, row, strict=True)) == {
        "workload": "n=40000",
        "eager us": "120.0",
        "compile us": "100.0",
        "baseline us": "-",
        "baseline": "compile",
        "sealed eager us": "60.0",
        "sealed compile us": "90.0",
        "sealed baseline": "eager",
    }
    (document,) = json.loads(_harness(tmp_path, "baseline", "made/scale", "--json", **stub).stdout)
    assert (document["baseline"], document["sealed_baseline"]) == ("compile", "eager")
    assert document["sealed_baselines"] == {"eager": 60.0, "compile": 90.0}


def test_only_names_of_baselines_can_be_raced(tmp_path: Path, stub: dict[str, str]) -> None:
    completed = _harness(tmp_path, "evaluate", "made/scale/solutions/cpu", "--against", "library_liger", **stub)
    assert completed.returncode == 0, completed.stderr
    assert _judge_requests(tmp_path)[-1]["baseline"] == {"n40000": "library_liger"}
    completed = _harness(tmp_path, "evaluate", "made/scale/solutions/cpu", "--against", "liger", **stub)
    assert completed.returncode == 2
    assert "`liger` is no baseline" in completed.stderr


def test_reasons_stand_below_the_table(tmp_path: Path, stub: dict[str, str]) -> None:
    kernel = tmp_path / "made/scale/solutions/cpu/kernel.cpp"
    kernel.write_text(f"{kernel.read_text()}\n// stub: verdict=TIMEOUT\n")
    completed = _harness(tmp_path, "evaluate", "made/scale/solutions/cpu", **stub)
    assert completed.returncode == 1
    table, reasons, last = completed.stdout.strip().split("\n\n")
    heads, _, row = table.splitlines()
    assert len(row) <= len(heads) + 2, "a reason makes no column wide"
    assert row.split()[:2] == ["n40000", "TIMEOUT"]
    assert reasons.startswith("n40000: ")
    assert last.startswith("TIMEOUT: ")


@pytest.mark.slow
@pytest.mark.xdist_group("judge")
def test_inputs_are_read_from_the_data_root(tmp_path: Path) -> None:
    problem = write_problem(tmp_path / "problems", sizes=(4_000,))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "harness.yaml").write_text("data_root: data\n")
    write_safetensors(tmp_path / "data/x.safetensors", "x", "F32", [4_000], struct.pack("<4000f", *range(4_000)))
    line = json.loads((problem / "workload.jsonl").read_text())
    line["inputs"]["x"] = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
    (problem / "workload.jsonl").write_text(json.dumps(line))
    solution = write_cpp(problem / "solutions" / "cpu")
    measured = _harness(tmp_path, "baseline", "made/scale", "--json")
    assert measured.returncode == 0, measured.stderr
    completed = _harness(tmp_path, "evaluate", str(solution), "--half-width", "0.5", "--json")
    assert completed.returncode == 0, completed.stderr
    (workload,) = json.loads(completed.stdout)["workloads"]
    assert workload["verdict"] == "PASSED"
    assert workload["bound_rates"] == "measured"
    assert workload["sol_us"] >= workload["floor_us"] > 0
