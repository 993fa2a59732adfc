"""Licences, names, workloads and tolerances of extracted problems, and the table of checkpoints."""

from __future__ import annotations

import pytest

from harness.corpus.axis_names import constant_names
from harness.corpus.checkpoints import ShapeSet, checkpoint_table
from harness.corpus.errors import SkippedError
from harness.corpus.problem_facts import facts_of
from harness.corpus.provenance import licence_of
from harness.corpus.variable_names import UniqueNames, identifier
from harness.corpus.workloads import sizes_for, tolerance_for, workload_lines
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


def test_constants_have_the_usual_name_of_a_configuration() -> None:
    config = {"hidden_size": 64, "d_kv": 64, "num_attention_heads": 16, "bos_token_id": 64, "num_hidden_layers": 12,
              "text_config": {"vocab_size": 1000}, "tie": True}  # fmt: skip
    assert constant_names(config) == {64: "hidden_size", 16: "num_attention_heads", 1000: "vocab_size"}


def test_sizes_follow_the_axes() -> None:
    assert sizes_for(["batch", "sequence"], SHAPES)[0] == {"batch": 1, "sequence": 8}
    assert [sizes["tokens"] for sizes in sizes_for(["tokens"], SHAPES)] == [8, 4, 32]
    assert [sizes["batch"] for sizes in sizes_for(["batch"], SHAPES)] == [1, 2, 4]
    assert sizes_for(["batch", "text"], SHAPES) == [{"batch": size, "text": 7} for size in (1, 4, 2)]


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


def test_the_description_says_model_sizes_and_operations() -> None:
    text = facts_of(
        "qwen3",
        "Qwen3MLP",
        ["linear", "silu", "linear"],
        family="llm",
        dtype="bfloat16",
        checkpoint="Qwen/Q",
        like=None,
    )
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
