"""The problems written by hand at the sizes of production models: facts, and runs of their references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.formats import small_profile
from harness.formats.bounded import load_json_file
from harness.formats.problems import DEFINITION_NAME, list_problems, load_problem
from harness.formats.small_profile import small_axes
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import InvalidReferenceError, Reference, Value, load_reference
from harness.model.problem import Problem

PROBLEMS = Path(__file__).parents[2] / "problems"
DEFINITIONS: dict[str, dict[str, Any]] = {
    key: load_json_file(PROBLEMS / key / DEFINITION_NAME) for key in list_problems(PROBLEMS)
}
BY_HAND = {key: value for key, value in DEFINITIONS.items() if "x_origin" in value}
SAMPLE = (
    "attention/mla_paged_decode",
    "llm/add_rmsnorm",
    "moe/sigmoid_group_routing",
    "quantised/quantise_nvfp4",
    "quantised/silu_mul_backward_fp8_groups",
    "rope/rope_kv_cache_write",
    "sampling/verify_greedy_tree",
    "ssm/causal_conv1d_update",
)
_MOST_INPUT_BYTES = 2**28


def with_tag(tag: str) -> list[str]:
    return [key for key, value in BY_HAND.items() if tag in value["tags"]]


def test_there_are_enough_quantised_and_serving_problems() -> None:
    quantised, serving = with_tag("quantised"), with_tag("serving")
    assert len(quantised) >= 33
    assert len(serving) >= 26
    assert set(quantised).isdisjoint(serving)
    assert len(quantised) + len(serving) == len(BY_HAND)
    for tag in ("fp8", "nvfp4", "mxfp4", "mxfp8", "int8", "int4", "paged", "ragged", "mla", "rope", "sampling"):
        assert with_tag(tag), tag


@pytest.mark.parametrize("key", sorted(BY_HAND))
def test_each_has_an_origin_tags_and_enough_workloads(key: str) -> None:
    definition = BY_HAND[key]
    assert set(definition["x_origin"]) == {"written", "model", "sizes", "licence"}
    assert definition["x_origin"]["model"] == definition["hf_id"]
    assert definition["name"] == key.partition("/")[2]
    assert definition["tags"][2] == ("backward" if "backward" in key else "forward")
    assert "\n" not in definition["description"]
    problem = load_problem(PROBLEMS / key, key=key)
    assert problem.warnings == ()
    assert 12 <= len(problem.workloads) <= 18
    assert len({tuple(row.axes.items()) for row in problem.workloads}) == len(problem.workloads)


@pytest.mark.parametrize("key", SAMPLE)
def test_a_sample_computes_finite_outputs_that_depend_on_every_input(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(key, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(BY_HAND))
def test_every_problem_computes_finite_outputs_that_depend_on_every_input(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(key, monkeypatch)


def _check(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a reference with the judge's inputs at small sizes of its first workload, one row among them."""
    monkeypatch.setattr(small_profile, "MAX_BYTES", _MOST_INPUT_BYTES)
    monkeypatch.setattr(small_profile, "MAX_AXIS", 8)
    problem = load_problem(PROBLEMS / key, key=key)
    reference = load_reference(problem)
    axes = small_axes(problem.definition, problem.workloads[0].axes)
    assert axes is not None
    workload = problem.workloads[0].model_copy(update={"axes": axes})
    inputs = InputSource(problem, reference=reference, seed=3).draw(workload)
    outputs = reference.outputs(list(inputs.values()))
    sizes = problem.sizes(workload)
    for name, spec in problem.definition.outputs.items():
        assert tuple(outputs[name].shape) == problem.shape(spec, sizes), name
        _check_values(outputs[name], allow_negative_inf=workload.tolerance.allow_negative_inf)
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            changed = {**inputs, name: _changed(value)}
            assert _differ(outputs, _outputs_or_none(reference, changed, problem)), name


def _check_values(output: torch.Tensor, *, allow_negative_inf: bool) -> None:
    """Check that all values are finite, and that the values of a larger tensor differ."""
    if output.dtype == torch.float4_e2m1fn_x2:
        output = output.view(torch.uint8)
    values = output.double()
    if allow_negative_inf:
        values = values.masked_fill(values == -torch.inf, 0.0)
    assert bool(values.isfinite().all())
    if output.numel() > 1024:
        assert float(values.std()) > 0.0


def _outputs_or_none(
    reference: Reference, inputs: dict[str, Value], problem: Problem
) -> dict[str, torch.Tensor] | None:
    """Return the outputs for changed inputs, or None if the reference rejects the change (of offsets, for example)."""
    assert set(inputs) == set(problem.definition.inputs)
    try:
        return reference.outputs(list(inputs.values()))
    except InvalidReferenceError:
        return None


def _differ(outputs: dict[str, torch.Tensor], other_outputs: dict[str, torch.Tensor] | None) -> bool:
    return other_outputs is None or any(not _equal(value, other_outputs[name]) for name, value in outputs.items())


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.dtype == torch.float4_e2m1fn_x2:
        return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    return torch.equal(first, second)


def _changed(value: torch.Tensor) -> torch.Tensor:
    """Return the elements in another order, or other values if the order changes nothing."""
    bits = value.view(torch.uint8) if value.dtype == torch.float4_e2m1fn_x2 else value
    if value.dtype == torch.bool:
        return ~value
    flat = bits.flatten()
    rolled = torch.cat((flat[-1:], flat[:-1])).view(bits.shape)
    if torch.equal(rolled, bits):
        rolled = (bits.float() * 0.5).to(bits.dtype)
    return rolled.view(value.dtype)
