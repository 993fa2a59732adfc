"""Stress cases: their values, the inputs that they leave alone, and their tolerances."""

from __future__ import annotations

import pytest
import torch

from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.stress_inputs import CASES, make, stress_cases, tolerance_for
from tests.judge.problem_in_memory import SIZES, problem, problem_of_one_input, tensor


def test_each_stress_case_has_its_values() -> None:
    sample_problem = problem_of_one_input("q")
    workload = sample_problem.workloads[0]
    assert stress_cases(sample_problem, workload) == tuple(CASES)
    source = InputSource(sample_problem, seed=9)
    values_by_case = {}
    for case in CASES:
        value = make(case, sample_problem, workload, source.draw(workload), source.random)["q"]
        assert isinstance(value, torch.Tensor)
        values_by_case[case] = value
    assert 200 < float(values_by_case["large"].std()) < 320
    assert float(values_by_case["small"].abs().max()) < 0.01
    assert 7 < float(values_by_case["offset"].mean()) < 9
    assert not bool(values_by_case["zeros"].any())
    assert 0 < float(values_by_case["denormals"].abs().max()) < torch.finfo(torch.float32).tiny
    assert not bool(values_by_case["tail"][:-1, :-3].any())
    assert bool(values_by_case["tail"][:, -3:].all())
    assert bool(values_by_case["tail"][-1].all())
    spike = values_by_case["spike"]
    assert float(spike.view(-1)[-1]) == 512.0
    assert 10 < int((spike == 512.0).sum()) <= 17
    another = make("spike", sample_problem, workload, source.draw(workload), source.random)["q"]
    assert isinstance(another, torch.Tensor)
    assert not torch.equal(spike == 512.0, another == 512.0)
    assert set(values_by_case["integers"].flatten().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}


def test_stress_cases_do_not_change_integers_and_masks() -> None:
    sample_problem = problem(
        {"mask": tensor("bool", "B"), "row_ids": tensor("int32", "B")},
        {"y": tensor("float32", "B")},
        "def run(mask, row_ids):\n    return mask.float()\n",
        SIZES,
    )
    assert stress_cases(sample_problem, sample_problem.workloads[0]) == ()


def test_the_tolerance_of_a_stress_case_is_equivalent_to_the_workloads() -> None:
    tolerance = problem_of_one_input("q").workloads[0].tolerance
    large = tolerance_for("large", tolerance, {"y": torch.full((8,), 256.0)}, {"y": 1.0})["y"]
    assert large.max_atol == pytest.approx(2.56)
    assert large.max_rtol == tolerance.max_rtol
    exact = tolerance_for("integers", tolerance, {"y": torch.tensor([3.0, -7.0])}, {})["y"]
    assert (exact.max_atol, exact.max_rtol, exact.required_matched_ratio) == (0.25, 0.0, 1.0)
    assert tolerance_for("integers", tolerance, {"y": torch.tensor([3.5])}, {})["y"] == tolerance
    assert tolerance_for("tail", tolerance, {"y": torch.tensor([300.0])}, {"y": 1.0})["y"] == tolerance
