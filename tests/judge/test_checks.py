from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.correctness import Comparison
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.stress_inputs import CASES, make, stress_cases
from harness.judge.reference import load_reference
from harness.model.problem import Problem
from harness.model.verdict import Verdict
from tests.judge.problem_in_memory import problem, tensor

_ATTENTION = """
import torch
def run(q, k, v):
    scores = (q @ k.T) * 0.125
    return torch.softmax(scores, dim=-1) @ v
"""


def _attention(dtype: str) -> Problem:
    shape = tensor(dtype, "T", "D")
    return problem({"q": shape, "k": shape, "v": shape}, {"out": shape}, _ATTENTION, {"T": 96, "D": 64})


def _checked(sample_problem: Problem, run: Callable[..., torch.Tensor], kind: str, check: WorkloadCheck) -> Comparison:
    workload = sample_problem.workloads[0]
    drawn = check.sets.source.draw(workload)
    if kind:
        make(kind, sample_problem, workload, drawn, check.sets.source.random)
    inputs = list(drawn.values())
    return check.check(inputs, check.expected(inputs), {"out": run(*inputs)}, kind)


def _check(sample_problem: Problem, seed: int = 3) -> WorkloadCheck:
    reference = load_reference(sample_problem)
    sets = WorkloadSets(
        sample_problem, InputSource(sample_problem, reference=reference, seed=seed), sample_problem.workloads[0]
    )
    return WorkloadCheck(reference, sets)


def _in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q.float() @ k.float().T) * 0.125
    return (torch.softmax(scores, dim=-1) @ v.float()).to(q.dtype)


@pytest.mark.parametrize("kind", ["", *CASES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_implementation_better_than_the_reference_passes_everywhere(dtype: str, kind: str) -> None:
    """With large inputs the reference rounds its scores to bfloat16, and its softmax has a large error."""
    sample_problem = _attention(dtype)
    check = _check(sample_problem)
    for _ in range(3):
        outcome = _checked(sample_problem, _in_float32, kind, check)
        assert outcome.verdict is Verdict.PASSED, outcome.reason


def test_the_reference_is_wrong_on_large_bfloat16_inputs() -> None:
    """Show that the inputs of the test above have an effect."""
    sample_problem = _attention("bfloat16")
    source, workload = InputSource(sample_problem, seed=3), sample_problem.workloads[0]
    drawn = make("large", sample_problem, workload, source.draw(workload), source.random)
    inputs = [value for value in drawn.values() if isinstance(value, torch.Tensor)]
    output = _in_float32(*inputs)
    reference_output = load_reference(sample_problem).outputs(inputs)["out"]
    assert float((output.float() - reference_output.float()).abs().max()) > 1.0


@pytest.mark.parametrize("kind", [case for case in CASES if case != "zeros"])
def test_a_wrong_answer_to_awkward_inputs_fails(kind: str) -> None:
    sample_problem = _attention("float32")

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _in_float32(q, k, v) * 1.5 + 1.0

    outcome = _checked(sample_problem, wrong, kind, _check(sample_problem))
    assert outcome.verdict is Verdict.INCORRECT_NUMERICAL
    assert outcome.max_abs_error > 0


def test_small_integers_through_a_linear_operation_are_exact() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "M", "K"), "weight": tensor("float32", "N", "K")},
        {"out": tensor("float32", "M", "N")},
        "def run(x, weight):\n    return x @ weight.T\n",
        {"M": 50, "N": 40, "K": 30},
    )

    def one_wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = x @ weight.T
        out[-1, -1] += 0.5
        return out

    assert (
        _checked(sample_problem, lambda x, weight: x @ weight.T, "integers", _check(sample_problem)).verdict
        is Verdict.PASSED
    )
    outcome = _checked(sample_problem, one_wrong, "integers", _check(sample_problem))
    assert outcome.reason is not None
    assert "at [49, 39]" in outcome.reason


def test_inputs_with_ties_are_left_out_where_two_answers_are_right() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "M", "K")},
        {"out": tensor("int64", "M")},
        "def run(x):\n    return x.argmax(-1)\n",
        {"M": 5, "K": 7},
    )
    assert stress_cases(sample_problem, sample_problem.workloads[0]) == ("large", "small")


def test_a_candidate_that_turns_coarse_later_is_caught_without_the_truth() -> None:
    sample_problem = _attention("float32")
    check = _check(sample_problem)
    for _ in range(5):
        assert _checked(sample_problem, _in_float32, "", check).verdict is Verdict.PASSED

    def coarse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _in_float32(q.half(), k.half(), v.half()).float()

    outcome = _checked(sample_problem, coarse, "", check)
    assert outcome.verdict is Verdict.INCORRECT_NUMERICAL
    assert outcome.reason is not None
    assert "less precise than an honest implementation" in outcome.reason


def test_what_could_not_be_applied_is_noted() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "M")},
        {"out": tensor("float32", "M")},
        "import torch\ndef run(x):\n    return torch.from_numpy(x.numpy().astype('float32'))\n",
        {"M": 5},
    )
    check = _check(sample_problem)
    assert _checked(sample_problem, lambda x: x.clone(), "", check).verdict is Verdict.PASSED
    assert check.note is not None
    assert check.note.startswith(
        "the rule on precision was not applied: no float64 truth: the reference returns `out` in"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_missing_update_of_few_elements_fails_within_the_matched_ratio(dtype: str) -> None:
    """The rules on precision and on the root mean square do not detect so small an update of 8-bit floats."""
    sample_problem = problem(
        {"cache": tensor(dtype, "N", "D"), "row": tensor(dtype, "D")},
        {"out": {**tensor(dtype, "N", "D"), "x_updates": "cache"}},
        "def run(cache, row):\n    cache[5] = row\n",
        {"N": 32768, "D": 16},
    )

    def honest(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        out = cache.clone()
        out[5] = row
        return out

    assert _checked(sample_problem, honest, "", _check(sample_problem)).verdict is Verdict.PASSED
    outcome = _checked(sample_problem, lambda cache, row: cache.clone(), "", _check(sample_problem))  # noqa: ARG005
    assert outcome.verdict is Verdict.INCORRECT_NUMERICAL
    assert outcome.reason is not None
    assert "output `out" in outcome.reason
