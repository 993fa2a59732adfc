"""Extraction from transformers and diffusers, where they are installed."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from harness.corpus.deep_check.original_module import compare_with_module
from harness.formats.problems import load_problem
from tests.command_line import call_harness

PROBLEMS = Path(__file__).parents[2] / "problems"
NEEDS = "needs {}: pip install 'kernel-harness[extract]', which `make test-long` does"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason=NEEDS.format("transformers")),
    pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason=NEEDS.format("diffusers")),
]


def test_llama_becomes_problems(tmp_path: Path) -> None:
    completed = call_harness("problems", "extract", "llama", "--into", str(tmp_path), cwd=tmp_path)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    names = {path.name for path in (tmp_path / "llm").iterdir()}
    assert {"llama_attention", "llama_decoder_layer", "llama_mlp", "llama_rms_norm"} <= names
    problem = load_problem(tmp_path / "llm/llama_mlp")
    assert problem.definition.reference.count("F.linear(") == 3
    extra = problem.definition.model_extra or {}
    assert extra["x_provenance"]["file"] == "transformers/models/llama/modeling_llama.py"
    assert extra["x_provenance"]["licence"] == "Apache-2.0"
    assert len(problem.workloads) >= 10


FEW = ("qwen2", "vit", "t5", "PixArtTransformer2DModel")
MOST_CPU_SECONDS = 90.0
"""Limit for one architecture, so that twenty take at most fifteen minutes on two cores."""


def test_architectures_take_bounded_processor_time_and_give_the_same_files_again(tmp_path: Path) -> None:
    directories = (tmp_path / "first", tmp_path / "second")
    for directory in directories:
        directory.mkdir()
        began = time.process_time()
        completed = call_harness("problems", "extract", *FEW, "--into", str(directory), cwd=tmp_path)
        assert completed.returncode == 0, completed.stdout + completed.stderr
        assert time.process_time() - began < MOST_CPU_SECONDS * len(FEW)
    first, second = (
        {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*.json*")}
        for directory in directories
    )
    assert {name.split("/")[0] for name in first} == {"llm", "vision", "encoder", "diffusion"}
    assert first == second


def test_shipped_problems_equal_their_modules_and_changed_ones_do_not() -> None:
    for key in ("llm/olmo2_rms_norm", "llm/olmo2_rms_norm_backward", "llm/olmo2_rms_norm_backward_saved"):
        compared = compare_with_module(load_problem(PROBLEMS / key, key=key))
        assert (compared.failure, compared.skipped) == (None, None)
        assert compared.shapes >= 4
    problem = load_problem(PROBLEMS / "llm/olmo2_rms_norm")
    reference = problem.definition.reference.replace("1e-05", "1e-04")
    changed = problem.model_copy(update={"definition": problem.definition.model_copy(update={"reference": reference})})
    assert (
        compare_with_module(changed).failure
        == "`reference` is not what the module gives now: extract the problem again"
    )
