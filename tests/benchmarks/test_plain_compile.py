"""The comparison of torch.compile in plain scripts and in the judge."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.plain_compile import (
    CompiledRow,
    Settings,
    Task,
    compile_all,
    compile_batch,
    differences,
    planned_tasks,
    read_rows,
)
from harness.formats.problems import load_problem
from harness.judge.input_data.layout import layout_of

PLAIN, JUDGE = Task("starter/rmsnorm_h4096", "w", "plain"), Task("starter/rmsnorm_h4096", "w", "judge")
ON_CPU = Settings("cpu", "aot_eager", 300.0, math.inf)


def test_only_a_variant_that_a_plain_script_compiles_is_missing_in_the_judge() -> None:
    rows = [
        ON_CPU.row(PLAIN, {"compile": None, "compile_graph": None, "max_autotune": "an error of the user"}, 1.0),
        ON_CPU.row(JUDGE, {"compile": "views", "compile_graph": None, "max_autotune": "the same error"}, 1.0),
    ]
    missing, own = differences(rows)
    assert [(comparison.variant, comparison.judge) for comparison in missing] == [("compile", "views")]
    assert [(comparison.variant, comparison.plain) for comparison in own] == [("max_autotune", "an error of the user")]
    assert differences(rows[:1]) == ([], [])


def test_rows_of_another_judge_are_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [ON_CPU.row(task, {"compile": None}, 1.0) for task in (PLAIN, JUDGE)]
    older = rows[1].model_copy(update={"version": "sha256:other"})
    file.write_text("".join(f"{row.model_dump_json()}\n" for row in (rows[0], older)) + '{"problem": "trunc')
    assert list(read_rows(file, ON_CPU)) == [PLAIN]


def test_the_smallest_workload_is_compiled_or_all_of_them() -> None:
    problem = load_problem(Path(__file__).parents[2] / "problems" / "starter" / "rmsnorm_h4096")
    smallest = min(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
    tasks = planned_tasks([problem.key], all_workloads=False)
    assert tasks == [Task(problem.key, smallest.uuid, "plain"), Task(problem.key, smallest.uuid, "judge")]
    assert len(planned_tasks([problem.key], all_workloads=True)) == 2 * len(problem.workloads)


def test_a_problem_that_hangs_has_an_error_and_the_next_one_its_own_process() -> None:
    rows: list[CompiledRow] = []
    compile_batch([PLAIN, JUDGE], Settings("cpu", "aot_eager", 0.01, math.inf), rows.append)
    assert [row.errors for row in rows] == [{"compile": "no answer within 0 s"}] * 2


@pytest.mark.slow
def test_both_ways_compile_a_shipped_problem(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    tasks = planned_tasks(["starter/rmsnorm_h4096"], all_workloads=False)
    rows = compile_all(tasks, ON_CPU, file, 1)
    assert [row.errors for row in rows] == [{"compile": None}] * 2
    assert compile_all(tasks, ON_CPU, file, 1) == rows, "the second run compiles nothing"
