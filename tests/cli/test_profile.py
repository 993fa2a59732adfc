"""`harness profile` on the command line; tests/gpu/test_counters.py tests the profiles."""

from __future__ import annotations

import os
from pathlib import Path

from tests.command_line import call_harness
from tests.judge.courtroom import write_cpp, write_problem


def test_a_cpu_has_no_counters_and_no_judge_is_started(tmp_path: Path) -> None:
    problem = write_problem(tmp_path)
    solution = write_cpp(problem / "solutions" / "cpu")
    environment = {**os.environ, "HARNESS_JUDGE_COMMAND": "/nonexistent", "HOME": str(tmp_path)}
    completed = call_harness("profile", str(solution), "--device", "cpu", cwd=tmp_path, environment=environment)
    assert completed.returncode == 1
    assert completed.stderr.strip() == "harness: no counters: no hardware counters are read on the target cpu"
