"""Licences, names, workloads and tolerances of extracted problems, and the table of checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.corpus.architectures import Architecture
from harness.corpus.axis_names import constant_names
from harness.corpus.candidates import FIRST_SIZES, SECOND_SIZES, AxisNames, ModelSizes
from harness.corpus.checkpoints import Checkpoint, ShapeSet, checkpoint_table
from harness.corpus.errors import SkippedError
from harness.corpus.problem_facts import facts_of, kind_of, problem_name
from harness.corpus.provenance import licence_of
from harness.corpus.variable_names import UniqueNames, identifier
from harness.corpus.workloads import axis_size, sizes_for, tolerance_for, workload_lines
from tests.corpus.drafts import draft

pytestmark = pytest.mark.xdist_group("corpus")
SHAPES = ShapeSet(pairs=((1, 8), (4, 1), (2, 16)), batches=(1, 2, 4), text=7)


@pytest.mark.parametrize(
    ("header", "licence"),
    [
        ('# Licensed under the Apache License, Version 2.0 (the "License");', "Apache-2.0"),
        ("# SPDX-License-Identifier: MIT", "MIT"),
        ("# Redistribution and use in source and binary forms, with or without", "BSD-3-Clause"),
        ("import torch", None),
    ],
)
def test_the_licence_is_read_from_the_header(header: str, licence: str | None) -> None:
    assert licence_of(f"{header}\n\nclass Model: ...\n", "model.py") == licence
    assert licence_of("\n" * 100 + header, "model.py") is None


@pytest.mark.parametrize("words", ["CC-BY-NC 4.0", "for non-commercial use", "Creative Commons NonCommercial"])
def test_a_licence_against_commercial_use_is_refused(words: str) -> None:
    with pytest.raises(SkippedError, match=r"the licence of model\.py forbids commercial use"):
        licence_of(f"# Licensed under the Apache License, Version 2.0, {words}", "model.py")


def test_names_are_identifiers_and_unique() -> None:
    assert [identifier(word) for word in ("LlamaRMSNorm", "AutoencoderKL", "UNet2DModel", "net.0-proj", "3x")] == [
        "llama_rms_norm", "autoencoder_kl", "u_net2d_model", "net_0_proj", "value_3x",
    ]  # fmt: skip
    names = UniqueNames(["gate"])
    assert [names.take(word) for word in ("gate", "gate", "lambda", "up")] == ["gate_2", "gate_3", "lambda_2", "up"]
    assert [names.take(word) for word in ("x_3", "x_3", "x_3")] == ["x_3", "x_4", "x_5"]


def test_constants_have_the_usual_name_of_a_configuration() -> None:
    config = {"hidden_size": 64, "d_kv": 64, "num_attention_heads": 16, "bos_token_id": 64, "num_hidden_layers": 12,
              "text_config": {"vocab_size": 1000}, "tie": True}  # fmt: skip
    assert constant_names(config) == {64: "hidden_size", 16: "num_attention_heads", 1000: "vocab_size"}


def test_a_size_of_experts_and_of_heads_is_named_by_the_module() -> None:
    config = {"hidden_size": 2048, "head_dim": 64, "n_routed_experts": 64, "num_attention_heads": 16}
    assert constant_names(config, "DeepseekV2Moe")[64] == "n_routed_experts"
    assert constant_names(config, "DeepseekV2Attention")[64] == "head_dim"


def test_sizes_of_all_heads_together_have_names() -> None:
    config = {"hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
              "intermediate_size": 900}  # fmt: skip
    names = constant_names(config)
    assert (names[2048], names[1024], names[4096]) == ("query_size", "key_value_size", "query_key_value_size")
    assert names[1800] == "gate_up_intermediate_size"
    assert constant_names({"attention_head_dim": 128, "num_attention_heads": 12})[1536] == "hidden_size"


def test_sizes_follow_the_axes() -> None:
    assert sizes_for(["batch", "sequence"], SHAPES)[0] == {"batch": 1, "sequence": 8}
    assert [sizes["tokens"] for sizes in sizes_for(["tokens"], SHAPES)] == [8, 4, 32]
    assert [sizes["batch"] for sizes in sizes_for(["batch"], SHAPES)] == [1, 2, 4]
    assert sizes_for(["batch", "text"], SHAPES) == [{"batch": size, "text": 7} for size in (1, 4, 2)]
    other_shapes = SHAPES.model_copy(update={"tokens": (3, 9), "text_pairs": ((2, 5),)})
    assert sizes_for(["tokens"], other_shapes) == [{"tokens": 3}, {"tokens": 9}]
    assert sizes_for(["batch", "text"], other_shapes) == [{"batch": 2, "text": 5}]
    assert sizes_for(["batch_times_64"], SHAPES) == [{"batch_times_64": 64 * batch} for batch in (1, 2, 4)]


def test_dimensions_are_named_after_their_factors_and_terms() -> None:
    first, second = FIRST_SIZES, SECOND_SIZES
    names = AxisNames()
    expected: dict[str, Callable[[ModelSizes], int]] = {
        "batch_times_64": lambda s: 64 * s.batch,
        "joint": lambda s: s.sequence + s.text,
        "sequence_plus_5": lambda s: s.sequence + 5,
        "text_tokens": lambda s: s.batch * s.text,
        "length_1": lambda s: s.sequence // 2,
    }
    for name, size in expected.items():
        assert names.of(size(first), size(second)) == name
        if name != "length_1":
            assert axis_size(name, first.batch, first.sequence, first.text) == size(first)
    assert names.of(5, 5) is None


def test_workloads_are_named_by_problem_and_sizes_and_fit_into_memory() -> None:
    block = draft("gated_block")
    lines = workload_lines("a/b", block, SHAPES, {"max_atol": 0.1})
    assert lines == workload_lines("a/b", block, SHAPES, {"max_atol": 0.1})
    assert {line["uuid"] for line in lines}.isdisjoint(
        line["uuid"] for line in workload_lines("a/c", block, SHAPES, {"max_atol": 0.1})
    )
    large = ShapeSet(pairs=((1, 8), (2, 8), (3, 8), (1024, 2**20)), batches=(1,))
    assert [line["axes"]["batch"] for line in workload_lines("a/b", block, large, {})] == [1, 2, 3]
    with pytest.raises(SkippedError, match="only 2 of the family's shapes"):
        workload_lines("a/b", block, ShapeSet(pairs=((1, 8), (2, 8), (1024, 2**20)), batches=(1,)), {})


def test_a_tolerance_follows_the_scale_of_the_outputs() -> None:
    assert tolerance_for("bfloat16", 1.3) == {"max_atol": 0.03, "max_rtol": 0.02, "required_matched_ratio": 0.99}
    assert tolerance_for("float32", 40.0, 2)["max_atol"] == 0.008
    sums = {"max_atol": 0.03, "max_rtol": 0.05, "required_matched_ratio": 0.9}
    assert tolerance_for("bfloat16", 1.3, has_sums=True) == sums


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("Qwen2MoeRMSNorm", "norm"), ("Qwen2MoeAttention", "attention"), ("Qwen2MoeSparseMoeBlock", "moe"),
        ("SeamlessM4Tv2FeedForward", "mlp"), ("MambaMixer", "ssm"), ("MambaBlock", "layer"),
    ],
)  # fmt: skip
def test_the_end_of_a_class_name_is_its_kind(class_name: str, kind: str) -> None:
    assert kind_of(class_name, ())[0] == kind


def test_the_name_of_a_problem_does_not_repeat_words() -> None:
    assert problem_name("gemma3_text", "gemma3_attention") == "gemma3_text_attention"
    assert problem_name("llama", "llama_mlp") == "llama_mlp"
    assert problem_name("opt", "decoder_layer") == "opt_decoder_layer"


def test_the_description_has_model_sizes_and_operations() -> None:
    architecture = Architecture("qwen3", Checkpoint(family="llm", checkpoint="Qwen/Q"))
    text = facts_of(architecture, "Qwen3MLP", ["linear", "silu", "linear"], "bfloat16")
    assert (text.name, text.op_type, text.tags) == ("qwen3_mlp", "mlp", ("llm", "mlp", "forward", "bfloat16"))
    assert text.description == (
        "Feed-forward block of qwen3 (Qwen3MLP) at the sizes of Qwen/Q, forward, bfloat16: 3 operations, "
        "mostly linear, silu."
    )


def test_the_table_of_checkpoints_is_whole() -> None:
    table = checkpoint_table()
    assert len(table.architectures) > 300
    for name, family in table.families.items():
        assert len(family.shapes.pairs) >= 10 or name == "custom"
        assert family.shapes.pairs[0][0] * family.shapes.pairs[0][1] <= 64, "the first is for machines without a GPU"
