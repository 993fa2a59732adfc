"""Changes that a reference may make to its inputs."""

from __future__ import annotations

import pytest
import torch

from harness.judge.reference import InvalidReferenceError, load_reference
from tests.judge.problem_in_memory import problem, tensor

HEAD = "import torch\ndef run(x, factor):\n"


def outputs(body: str, *inputs: torch.Tensor | float) -> dict[str, torch.Tensor]:
    sample_problem = problem(
        {"x": tensor("float32", "n"), "factor": {"shape": None, "dtype": "float32"}},
        {"y": tensor("float32", "n")},
        HEAD + body,
        {"n": 4},
        input_sources={"factor": {"type": "scalar", "value": 2.0}},
    )
    return load_reference(sample_problem).outputs(inputs)


@pytest.mark.parametrize(
    "body",
    [
        "    return x.mul_(factor)\n",
        "    x[1:].add_(factor)\n    return x * factor\n",
        "    torch.mul(x, factor, out=x)\n    return x.clone()\n",
        "    x.view(2, 2)[0] = factor\n    return x * factor\n",
    ],
    ids=["method", "slice", "out", "view"],
)
def test_a_reference_that_changes_an_input_is_refused_by_name(body: str) -> None:
    with pytest.raises(InvalidReferenceError, match="changes its input `x` in place") as refused:
        outputs(body, torch.ones(4), 2.0)
    assert refused.value.remedy is not None
    assert '`"x_updates": "x"`' in refused.value.remedy


def test_a_reference_may_change_its_own_tensors() -> None:
    result = outputs("    y = x.clone()\n    return y.mul_(factor)\n", torch.ones(4), 2.0)
    assert result["y"].tolist() == [2.0] * 4


def test_changes_elsewhere_in_the_allocation_are_not_the_references() -> None:
    """All sets of inputs are slices of one allocation, as in the judge."""
    memory = torch.ones(8)
    memory[4:].fill_(3.0)
    assert outputs("    return x * factor\n", memory[:4], 2.0)["y"].tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("last", "y"),
    [
        ("    return y\n", "y"),
        ("    return y, x\n", "y"),
        ("    return {'y': y}\n", "y"),
        ("    return {'new': x, 'y': y}\n", "y"),
        ("    return y, x.clone()\n", "y"),
        ("", None),
        ("    return x\n", None),
    ],
)
def test_a_declared_update_is_made_on_a_copy_and_need_not_be_returned(last: str, y: str | None) -> None:
    outputs = {"y": tensor("float32", "n")} if y else {}
    sample_problem = problem(
        {"x": tensor("float32", "n"), "factor": {"shape": None, "dtype": "float32"}},
        {**outputs, "new": {**tensor("float32", "n"), "x_updates": "x"}},
        f"{HEAD}    y = x * factor\n    x[1] = factor\n{last}",
        {"n": 4},
        input_sources={"factor": {"type": "scalar", "value": 2.0}},
    )
    input_x = torch.ones(4)
    result = load_reference(sample_problem).outputs([input_x, 2.0])
    assert list(result) == [*outputs, "new"]
    assert result["new"].tolist() == [1.0, 2.0, 1.0, 1.0]
    assert not y or result["y"].tolist() == [2.0] * 4
    assert input_x.tolist() == [1.0] * 4, "the judge's input is unchanged"


def test_an_undeclared_update_beside_a_declared_one_is_refused() -> None:
    sample_problem = problem(
        {"x": tensor("float32", "n"), "z": tensor("float32", "n")},
        {"new": {**tensor("float32", "n"), "x_updates": "x"}},
        "def run(x, z):\n    x.add_(z)\n    z.zero_()\n",
        {"n": 4},
    )
    with pytest.raises(InvalidReferenceError, match="changes its input `z` in place"):
        load_reference(sample_problem).outputs([torch.ones(4), torch.ones(4)])
