from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.stress_inputs import CASES, make, stress_cases
from harness.judge.reference import load_reference
from harness.judge.round_outcomes import CheckOutcome
from harness.model.problem import Problem
from harness.model.verdict import Verdict
from tests.judge.made import problem, tensor

_ATTENTION = """
import torch
def run(q, k, v):
    scores = (q @ k.T) * 0.125
    return torch.softmax(scores, dim=-1) @ v
"""


def _attention(dtype: str) -> Problem:
    shape = tensor(dtype, "T", "D")
    return problem({"q": shape, "k": shape, "v": shape}, {"out": shape}, _ATTENTION, {"T": 96, "D": 64})


def _checked(made: Problem, run: Callable[..., torch.Tensor], kind: str, check: WorkloadCheck) -> CheckOutcome:
    workload = made.workloads[0]
    drawn = check.sets.source.draw(workload)
    if kind:
        make(kind, made, workload, drawn)
    inputs = list(drawn.values())
    return check.check(inputs, check.expected(inputs), {"out": run(*inputs)}, kind)


def _check(made: Problem, seed: int = 3) -> WorkloadCheck:
    reference = load_reference(made)
    sets = WorkloadSets(made, InputSource(made, reference=reference, seed=seed), made.workloads[0])
    return WorkloadCheck(reference, sets)


def _in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q.float() @ k.float().T) * 0.125
    return (torch.softmax(scores, dim=-1) @ v.float()).to(q.dtype)


@pytest.mark.parametrize("kind", ["", *CASES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_implementation_better_than_the_reference_passes_everywhere(dtype: str, kind: str) -> None:
    """Large bfloat16 inputs: the reference rounds its scores to bfloat16, and its softmax is far from the truth."""
    made = _attention(dtype)
    check = _check(made)
    for _ in range(3):
        outcome = _checked(made, _in_float32, kind, check)
        assert outcome.verdict is Verdict.PASSED, outcome.reason


def test_the_reference_is_wrong_on_large_bfloat16_inputs() -> None:
    """So that the test above means something."""
    made = _attention("bfloat16")
    drawn = make("large", made, made.workloads[0], InputSource(made, seed=3).draw(made.workloads[0]))
    inputs = [value for value in drawn.values() if isinstance(value, torch.Tensor)]
    ours = _in_float32(*inputs)
    theirs = load_reference(made).outputs(inputs)["out"]
    assert float((ours.float() - theirs.float()).abs().max()) > 1.0


@pytest.mark.parametrize("kind", [case for case in CASES if case != "zeros"])
def test_a_wrong_answer_to_awkward_inputs_fails(kind: str) -> None:
    made = _attention("float32")

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _in_float32(q, k, v) * 1.5 + 1.0

    outcome = _checked(made, wrong, kind, _check(made))
    assert outcome.verdict is Verdict.INCORRECT_NUMERICAL
    assert outcome.max_abs_error > 0


def test_small_integers_through_a_linear_operation_are_exact() -> None:
    made = problem(
        {"x": tensor("float32", "M", "K"), "weight": tensor("float32", "N", "K")},
        {"out": tensor("float32", "M", "N")},
        "def run(x, weight):\n    return x @ weight.T\n",
        {"M": 50, "N": 40, "K": 30},
    )

    def one_wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = x @ weight.T
        out[-1, -1] += 0.5
        return out

    assert _checked(made, lambda x, weight: x @ weight.T, "integers", _check(made)).verdict is Verdict.PASSED
    outcome = _checked(made, one_wrong, "integers", _check(made))
    assert outcome.reason is not None
    assert "at [49, 39]" in outcome.reason


def test_where_ties_have_two_right_answers_there_are_none() -> None:
    made = problem(
        {"x": tensor("float32", "M", "K")},
        {"out": tensor("int64", "M")},
        "def run(x):\n    return x.argmax(-1)\n",
        {"M": 5, "K": 7},
    )
    assert stress_cases(made, made.workloads[0]) == ("large", "small")


def test_a_candidate_that_turns_coarse_later_is_caught_without_the_truth() -> None:
    made = _attention("float32")
    check = _check(made)
    for _ in range(5):
        assert _checked(made, _in_float32, "", check).verdict is Verdict.PASSED

    def coarse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _in_float32(q.half(), k.half(), v.half()).float()

    outcome = _checked(made, coarse, "", check)
    assert outcome.verdict is Verdict.INCORRECT_NUMERICAL
    assert outcome.reason is not None
    assert "less precise than an honest implementation" in outcome.reason


def test_what_could_not_be_applied_is_noted() -> None:
    made = problem(
        {"x": tensor("float32", "M")},
        {"out": tensor("float32", "M")},
        "import torch\ndef run(x):\n    return torch.from_numpy(x.numpy().astype('float32'))\n",
        {"M": 5},
    )
    check = _check(made)
    assert _checked(made, lambda x: x.clone(), "", check).verdict is Verdict.PASSED
    assert check.note is not None
    assert check.note.startswith(
        "the rule on precision was not applied: no float64 truth: the reference returns `out` in"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_an_update_of_few_elements_must_be_made_though_the_rest_is_within_the_matched_ratio(dtype: str) -> None:
    """The rules on precision and on the root mean square reach no update of 8-bit floats that is so small."""
    made = problem(
        {"cache": tensor(dtype, "N", "D"), "row": tensor(dtype, "D")},
        {"out": {**tensor(dtype, "N", "D"), "x_updates": "cache"}},
        "def run(cache, row):\n    cache[5] = row\n",
        {"N": 32768, "D": 16},
    )

    def honest(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        out = cache.clone()
        out[5] = row
        return out

    assert _checked(made, honest, "", _check(made)).verdict is Verdict.PASSED
    outcome = _checked(made, lambda cache, row: cache.clone(), "", _check(made))  # noqa: ARG005
    assert outcome.verdict is Verdict.INCORRECT_NUMERICAL
    assert outcome.reason is not None
    assert "output `out" in outcome.reason
