"""The first solution of a tuner on a problem without a solution."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from harness.agents.reference_solution import write_reference_solution
from harness.agents.tuner import read_space
from harness.formats.problems import load_problem
from harness.formats.solutions import check_solution, load_solution
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import load_reference
from harness.runner.pytorch import load_function

PROBLEMS = Path(__file__).parents[2] / "problems"


@pytest.mark.parametrize("key", ["llm/add_rmsnorm", "ssm/causal_conv1d_update", "attention/kv_cache_write"])
def test_it_computes_what_the_reference_computes_and_changes_no_input(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = load_problem(PROBLEMS / key, key=key)
    assert write_reference_solution(tmp_path / "cpu", problem, "cpu")
    solution = load_solution(tmp_path / "cpu")
    assert check_solution(solution, problem.definition) == []
    workload = problem.workloads[1]
    inputs = InputSource(problem, seed=1).draw(workload)
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    expected = load_reference(problem).outputs(list(inputs.values()))
    monkeypatch.delitem(sys.modules, "problem_code", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    solve = load_function(str(tmp_path / "cpu" / "kernel.py"), "solve")
    updates = problem.definition.updates
    places = {
        name: before[updates[name]].clone() if name in updates else torch.empty_like(expected[name])
        for name in problem.definition.outputs
    }
    assert solution.spec.destination_passing == bool(updates)
    passed = places.values() if updates else ()
    returned = solve(*inputs.values(), *passed, **solution.spec.params)
    returned = places if updates else returned
    monkeypatch.delitem(sys.modules, "problem_code", raising=False)
    assert set(returned) == set(problem.definition.outputs)
    for name, value in expected.items():
        assert torch.equal(returned[name], value)
    for name, value in before.items():
        assert torch.equal(inputs[name], value), "the solution changed an input"  # type: ignore[arg-type]


@pytest.mark.parametrize(("target", "size"), [("cpu", 12), ("h200", 8)])
def test_it_spans_variants_and_begins_with_the_eager_call(target: str, size: int, tmp_path: Path) -> None:
    problem = load_problem(PROBLEMS / "llm/add_rmsnorm")
    write_reference_solution(tmp_path / target, problem, target)
    space = read_space(tmp_path / target)
    assert space.size == size
    assert space.start["MODE"] == "eager"


def test_an_existing_solution_stays_unchanged(tmp_path: Path) -> None:
    problem = load_problem(PROBLEMS / "llm/add_rmsnorm")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/solution.yaml").write_text("language: cpp\n")
    assert not write_reference_solution(tmp_path / "cpu", problem, "cpu")
    assert (tmp_path / "cpu/solution.yaml").read_text() == "language: cpp\n"
