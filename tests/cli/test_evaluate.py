"""`harness evaluate` and `harness baseline` as people type them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judge.courtroom import KERNEL, write_cpp, write_problem

pytestmark = pytest.mark.xdist_group("judge")


def _harness(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HARNESS_LOCK_DIR": str(tmp_path / "locks"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_a_solution_in_its_problem_is_judged_and_shown(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(problem / "solutions" / "cpu")
    done = _harness(tmp_path, "evaluate", str(solution), "--against", "eager", "--half-width", "0.5")
    assert done.returncode == 0, done.stderr
    heads, _, row, *_, last = done.stdout.strip().splitlines()
    assert heads.split()[:2] == ["workload", "verdict"]
    assert row.split()[:2] == ["n40000", "PASSED"]
    assert last.startswith("PASSED: ")
    assert "x (" in last


@pytest.mark.slow
def test_a_wrong_solution_exits_with_1_and_says_why(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    wrong = write_cpp(tmp_path / "wrong", KERNEL.replace("i = 0", "i = 1"))
    done = _harness(tmp_path, "evaluate", str(wrong), "--problem", str(problem), "--against", "eager", "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "INCORRECT_NUMERICAL"
    assert done.stderr.startswith("harness: INCORRECT_NUMERICAL: workload n40000: output `y`")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "nowhere"), "no such directory, and no workspace here to look a commit up in"),
        (("evaluate", "."), "does not lie in a problem"),
        (("evaluate", "made/scale"), "no solution.yaml in"),
        (("evaluate", "made/scale", "--solution", "their.json"), "their.json"),
        (("baseline", "other/problem"), "no problem `other/problem`"),
    ],
)
def test_what_leads_nowhere_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    write_problem(tmp_path)
    (tmp_path / "their.json").write_text("{}")
    done = _harness(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_none_is_named(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(tmp_path / "solution")
    done = _harness(tmp_path, "evaluate", str(solution), "--problem", str(problem), "--device", "tpu")
    assert done.returncode == 2
    assert "no such device: tpu" in done.stderr


@pytest.mark.slow
def test_baselines_are_measured_once_and_the_fastest_is_raced(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(tmp_path / "solution")
    measured = _harness(tmp_path, "baseline", str(problem), "--json")
    assert measured.returncode == 0, measured.stderr
    (row,) = json.loads(measured.stdout)
    fastest = min(("eager", "compile"), key=lambda name: row[name])
    assert row["baseline"] == fastest
    done = _harness(tmp_path, "evaluate", str(solution), "--problem", str(problem), "--json", "--half-width", "0.5")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workloads"][0]["variant"] == fastest
