"""Outputs that a reference hides by -inf: the rule on precision compares the other elements with float64."""

from __future__ import annotations

import math

import pytest
import torch

from harness.judge.precision import Truth, find_truth, relative_error
from harness.judge.reference import load_reference
from tests.judge.problem_in_memory import problem, tensor

HIDDEN = -math.inf


def test_elements_that_both_hide_have_no_error() -> None:
    true = torch.tensor([1.0, HIDDEN, 2.0], dtype=torch.float64)
    assert relative_error(true, torch.tensor([1.0, HIDDEN, 2.0])) == 0.0
    assert relative_error(true, torch.tensor([1.0, HIDDEN, 2.2])) == pytest.approx(0.2 / math.sqrt(5.0), rel=1e-5)


@pytest.mark.parametrize("actual", [[1.0, 0.0, 2.0], [HIDDEN, HIDDEN, 2.0], [1.0, math.inf, 2.0], [1.0, math.nan, 2.0]])
def test_an_element_that_only_one_hides_is_wrong(actual: list[float]) -> None:
    true = torch.tensor([1.0, HIDDEN, 2.0], dtype=torch.float64)
    assert not relative_error(true, torch.tensor(actual)) <= 1e9


@pytest.mark.parametrize("value", ["float('-inf')", "float('inf')", "float('nan')"])
def test_only_hidden_elements_have_a_truth(value: str) -> None:
    vector = tensor("float32", "n")
    source = f"import torch\ndef run(x):\n    return torch.where(x > 0, x.float(), torch.full_like(x, {value}))\n"
    reference = load_reference(problem({"x": vector}, {"y": vector}, source, {"n": 4}))
    inputs = [torch.tensor([1.0, -1.0, 2.0, -2.0])]
    truth = find_truth(reference, inputs, reference.outputs(inputs))
    if value == "float('-inf')":
        assert isinstance(truth, Truth)
        assert truth.broken_by({"y": torch.tensor([1.0, HIDDEN, 2.0, HIDDEN])}) is None
        assert truth.broken_by({"y": torch.tensor([1.01, HIDDEN, 2.0, HIDDEN])}) is not None
    else:
        assert isinstance(truth, str)
        assert "not finite" in truth
