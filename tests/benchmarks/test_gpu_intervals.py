from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu_intervals import PROBLEMS, Plan, Trial, eager_solution, missing_trials
from benchmarks.measured_rows import MeasuredRow, append_row
from harness.formats.problems import load_problem
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.reference import load_reference
from harness.judge.version import judge_version
from harness.runner.pytorch import load_function

NAMES = ("norm/a", "norm/b", "gemm/c", "gemm/d", "moe/e")


def trials(*names: str) -> list[Trial]:
    return [Trial(name, Path(), Path(), "eager", 0.01) for name in names]


def measured(file: Path, part: str, *names: str) -> None:
    for name in names:
        row = MeasuredRow(
            part=part, case=name, judge_version=judge_version(), busy=0, workloads=1, verdict="PASSED", judge_s=1.0
        )
        append_row(file, row)


def plan(file: Path, **settings: object) -> Plan:
    return Plan(file, file.parent, 3, 0.0, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["norm/a", "gemm/c", "gemm/d"]),
        ({"cases": "gemm/*"}, ["gemm/c", "gemm/d"]),
        ({"shard": (1, 2)}, ["norm/a", "gemm/c"]),
        ({"shard": (2, 2)}, ["gemm/d"]),
    ],
)
def test_references_are_judged_once_each_by_one_shard(
    settings: dict[str, object], expected: list[str], tmp_path: Path
) -> None:
    measured(tmp_path / "rows", "references", "norm/b", "moe/e")
    missing = missing_trials("references", trials(*NAMES), plan(tmp_path / "rows", **settings))
    assert [trial.case for trial in missing] == expected


def test_other_parts_go_on_where_the_file_ends(tmp_path: Path) -> None:
    measured(tmp_path / "rows", "sealed", "norm/a")
    missing = missing_trials("sealed", trials("norm/a", "norm/b"), plan(tmp_path / "rows"))
    assert [trial.case for trial in missing] == ["norm/b", "norm/a"]


@pytest.mark.parametrize("key", ["attention/kv_cache_write", "rope/rope_kv_cache_write"])
def test_a_reference_that_updates_inputs_becomes_a_solution_with_the_same_outputs(tmp_path: Path, key: str) -> None:
    problem = load_problem(PROBLEMS / key)
    solution = eager_solution(tmp_path / "solution", PROBLEMS / key)
    solve = load_function(str(solution / "kernel.py"), "solve")
    reference = load_reference(problem)
    smallest = min(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
    inputs = InputSource(problem, reference=reference, seed=1).draw(smallest)
    expected = reference.outputs(list(inputs.values()))
    updates = problem.definition.updates
    outputs = {
        name: torch.as_tensor(inputs[updates[name]]).clone() if name in updates else torch.zeros_like(value)
        for name, value in expected.items()
    }
    solve(*inputs.values(), *outputs.values())
    for name, value in expected.items():
        assert torch.equal(outputs[name].view(torch.uint8), value.view(torch.uint8)), name
