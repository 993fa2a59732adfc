"""Float64 runs on a GPU: attention by blocks, and storages that are moved to host memory, change no result."""

from __future__ import annotations

import random

import pytest
import torch

from harness.formats.problems import list_problems, load_problem
from harness.judge.input_data.inputs import InputSource
from harness.judge.memory_forecast import forecast
from harness.judge.precision import outputs_in, relative_error
from harness.judge.reference import load_reference
from harness.judge.truth import attention as by_blocks
from harness.model.problem import Problem, Workload
from tests.judge.truth.test_attention import PROBLEMS

_MOST_BYTES = 6 << 30
"""Largest predicted memory of a compared float64 run by blocks; the whole scores come in addition."""
_ATTENTION = "scaled_dot_product_attention("


def _largest_fitting(problem: Problem) -> Workload | None:
    """Return the workload with the largest predicted float64 run below the limit."""
    fitting = [workload for workload in problem.workloads if forecast(problem, workload).truth_bytes < _MOST_BYTES]
    return max(fitting, key=lambda workload: forecast(problem, workload).truth_bytes, default=None)


def _drawn(*, attends: bool) -> list[str]:
    keys = [
        key for key in list_problems(PROBLEMS)
        if (_ATTENTION in load_problem(PROBLEMS / key, key=key).definition.reference) == attends
    ]  # fmt: skip
    return random.Random(20261124).sample(keys, 5)


@pytest.mark.parametrize("key", [*_drawn(attends=True), *_drawn(attends=False)])
def test_blocks_and_a_budget_change_no_result(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load_problem(PROBLEMS / key, key=key)
    workload = _largest_fitting(problem)
    assert workload is not None
    reference = load_reference(problem)
    source = InputSource(problem, reference=reference, device=torch.device("cuda"))
    inputs = list(source.draw(workload).values())
    monkeypatch.setattr(by_blocks, "BLOCK_BYTES", 1 << 60)
    whole = outputs_in(torch.float64, reference, inputs)
    monkeypatch.setattr(by_blocks, "BLOCK_BYTES", 1 << 22)
    parts = outputs_in(torch.float64, reference, inputs)
    budget = max(forecast(problem, workload).truth_bytes // 2, 1 << 20)
    spilled = outputs_in(torch.float64, reference, inputs, budget)
    for name, value in whole.items():
        if value.dtype is torch.float64:
            assert relative_error(value, parts[name]) < 1e-12, name
            assert relative_error(parts[name], spilled[name]) < 1e-14, name
        else:
            assert torch.equal(value, parts[name]), name
