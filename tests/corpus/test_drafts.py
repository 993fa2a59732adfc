"""Exporting, printing, naming, axes, roles and the hash of graphs, on the modules in small_modules.py."""

from __future__ import annotations

import dataclasses

import pytest

from harness.corpus.errors import SkippedError
from harness.corpus.exporting import export_module
from harness.corpus.verification import RunnableProblem, verify
from tests.corpus.drafts import candidates, draft

pytestmark = pytest.mark.xdist_group("corpus")  # in one process: each module is exported once

BLOCK = """\
import torch
import torch.nn.functional as F


def run(hidden, norm_weight, gate_weight, up_weight, down_weight, down_bias):
    hidden_squared = hidden.pow(2)
    variance = hidden_squared.mean(dim=-1, keepdim=True)
    variance_plus_eps = variance + 1e-06
    reciprocal_root = torch.rsqrt(variance_plus_eps)
    normalized = hidden * reciprocal_root
    norm = norm_weight * normalized
    gate = F.linear(norm, gate_weight)
    activated = F.silu(gate)
    up = F.linear(norm, up_weight)
    activated_times_up = activated * up
    down = F.linear(activated_times_up, down_weight, down_bias)
    output = hidden + down
    return output
"""
ROTATED = """\
import torch


def run(states, cos, sin):
    batch = states.shape[0]
    sequence = states.shape[1]
    states_reshaped = states.reshape(batch, sequence, 2, 8)
    heads = states_reshaped.transpose(1, 2)
    first, second = heads.chunk(2, dim=-1)
    second_negated = -second
    joined = torch.cat([second_negated, first], dim=-1)
    rotated = joined * sin
    heads_times_cos = heads * cos
    turned = heads_times_cos + rotated
    turned_fp32 = turned.to(torch.float32)
    probabilities = torch.softmax(turned_fp32, dim=-1)
    return turned_fp32, probabilities
"""


def test_a_module_is_printed_as_plain_pytorch() -> None:
    assert draft("gated_block").reference == BLOCK
    assert draft("rotated").reference == ROTATED


def test_axes_are_symbols_constants_and_digits() -> None:
    block, rotated = draft("gated_block"), draft("rotated")
    assert block.axes == {
        "batch": {"type": "var"},
        "sequence": {"type": "var"},
        "width": {"type": "const", "value": 24},
        "inner": {"type": "const", "value": 40},
    }
    assert block.inputs["gate_weight"]["shape"] == ["inner", "width"]
    assert rotated.inputs["cos"]["shape"] == ["sequence", "8"]
    assert rotated.outputs["probabilities"]["shape"] == ["batch", "2", "sequence", "8"]


def test_each_input_has_a_role_and_a_scale() -> None:
    roles = {name: spec["x_distribution"] for name, spec in draft("gated_block").inputs.items()}
    assert roles == {
        "hidden": "normal",
        "norm_weight": "around_one",
        "gate_weight": {"role": "weight", "std": 0.2041},  # 24 ** -0.5
        "up_weight": {"role": "weight", "std": 0.2041},
        "down_weight": {"role": "weight", "std": 0.1581},  # 40 ** -0.5
        "down_bias": "bias",
    }
    rotated = draft("rotated").inputs
    assert (rotated["cos"]["x_distribution"], rotated["sin"]["x_distribution"]) == ("cosine", "sine")
    assert draft("masked_attention").inputs["attention_mask"]["x_distribution"] == "mask"


def test_a_batch_norm_is_printed_with_its_statistics_first() -> None:
    true = draft("convolution_norm")
    norm = "F.batch_norm(convolution, norm_running_mean, norm_running_var, norm_weight, norm_bias, training=False"
    assert norm in true.reference
    assert verify(true).shapes == 4


def test_sizes_that_no_configuration_names_are_called_after_their_weight() -> None:
    axes = draft("convolution_norm").axes
    assert axes["convolution_channels"] == {"type": "const", "value": 16}


def test_probabilities_that_attention_returns_are_no_output() -> None:
    attention = draft("self_attention")
    assert [spec["shape"] for spec in attention.outputs.values()] == [
        ["batch", "sequence", "hidden_size"],
        ["batch", "2", "sequence"],
    ]
    assert "softmax" in attention.reference


def test_an_argument_that_takes_no_part_is_no_input() -> None:
    assert "ignored" in [leaf.name for leaf in candidates("gated_block")[0].leaves]
    assert "ignored" not in draft("gated_block").inputs


def test_submodules_are_found_once() -> None:
    assert [item.path for item in candidates("whole_model")] == ["", "blocks.0", "blocks.0.norm", "blocks.1"]


def test_the_hash_ignores_names_constants_and_sizes() -> None:
    first, norm, second = (draft("whole_model", place) for place in (1, 2, 3))
    assert first.reference != second.reference  # another epsilon
    assert first.graph == second.graph == draft("gated_block").graph
    assert norm.graph not in {first.graph, draft("rotated").graph}


def test_a_graph_for_some_lengths_only_is_refused() -> None:
    with pytest.raises(SkippedError, match=r"`sequence` from \d to 39 only"):
        export_module(candidates("only_one_length")[0])


@pytest.mark.parametrize("factory", ["gated_block", "rotated", "self_attention", "masked_attention"])
def test_a_true_draft_is_verified(factory: str) -> None:
    verified = verify(draft(factory))
    assert verified.shapes == 5
    assert 0.01 < verified.root_mean_square < 10


@pytest.mark.parametrize(
    ("factory", "right", "wrong", "reason"),
    [
        ("gated_block", "1e-06", "2e-06", "`output` differs from the module's output"),
        ("gated_block", "hidden + down", "hidden - down", "`output` differs"),
        ("gated_block", "F.linear(norm, up_weight)", "F.linear(norm, gate_weight)", "`output` differs"),
        ("gated_block", "F.silu(gate)", "F.silu(gate).sqrt()", "`output` (differs|is not finite)"),
        ("rotated", "reshape(batch, sequence", "reshape(batch, 2", "shape"),
        ("rotated", "heads * cos", "heads * coss", "NameError"),
    ],
)
def test_a_reference_that_differs_is_refused(factory: str, right: str, wrong: str, reason: str) -> None:
    true = draft(factory)
    assert true.reference.count(right) == 1
    with pytest.raises(SkippedError, match=reason):
        verify(dataclasses.replace(true, reference=true.reference.replace(right, wrong)))


def test_an_input_that_does_not_matter_is_refused() -> None:
    true = draft("gated_block")
    extra = dataclasses.replace(
        true,
        inputs={**true.inputs, "unused": true.inputs["norm_weight"]},
        sources={**true.sources, "unused": true.sources["norm_weight"]},
        reference=true.reference.replace("down_bias):", "down_bias, unused):"),
    )
    with pytest.raises(SkippedError, match=r"(`unused` does not matter|differs)"):
        verify(extra)


def test_an_input_that_a_far_larger_number_hides_is_refused_although_it_has_a_gradient() -> None:
    true = draft("masked_attention")
    wrong = {**true.inputs["attention_mask"], "x_distribution": "additive_mask"}
    with pytest.raises(SkippedError, match="the input `query` does not matter"):
        verify(dataclasses.replace(true, inputs={**true.inputs, "attention_mask": wrong}))


def test_only_dtypes_become_float32() -> None:
    true = draft("gated_block")
    inputs = {**true.inputs, "bfloat16_scale": {"shape": None, "dtype": "bfloat16"}}
    reference = true.reference.replace("def run(", "def run(bfloat16_scale, ").replace(
        "    return output", "    half = output.to(torch.bfloat16)\n    return half.to(torch.float32)"
    )
    runnable = RunnableProblem(dataclasses.replace(true, inputs=inputs, reference=reference), "float32")
    definition = runnable.reference.definition
    assert definition.inputs["bfloat16_scale"].dtype == "float32"
    assert "def run(bfloat16_scale, " in definition.reference
    assert "output.to(torch.float32)" in definition.reference
