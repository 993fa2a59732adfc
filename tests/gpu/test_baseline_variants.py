"""CUDA graphs and max-autotune of the reference, measured as baselines and raced.

`python -m pytest tests/gpu/test_baseline_variants.py -s` prints the times of each form by both clocks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.model.judging import JudgeAnswer, MoreBaseline, Variant
from harness.workspace.blocking_judge import JudgeProcess
from tests.gpu.cases import HONEST, write_problem
from tests.judge import courtroom

GRAPHS: tuple[Variant, ...] = ("compile_graph", "cuda_graph")
CHAIN = """
import torch

def run(x):
    for _ in range(12):
        x = torch.relu(x) - 0.01
    return x
"""
"""Twelve pairs of launches of a microsecond, which are host-bound in eager mode."""
WAITING = "def run(x):\n    return x if x.sum().item() > 1e30 else x * 2\n"
"""A reference that waits for the device, which cannot be captured in a graph."""
ATTENTION = """
import torch.nn.functional as F

def run(x):
    heads = x.view(1, 8, -1, 64)
    return F.scaled_dot_product_attention(heads, heads, heads).flatten()
"""
"""Attention in float32, for which flash attention has no kernel."""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    with courtroom.judge_with_own_locks("cuda", tmp_path_factory.mktemp("variants")) as judge:
        yield judge


def vectors(directory: Path, reference: str, outputs: Mapping[str, str] | None = None) -> Path:
    root = directory / "made" / "vectors"
    root.mkdir(parents=True)
    vector = {"shape": ["n"], "dtype": "float32"}
    definition = {
        "name": "vectors",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": vector},
        "outputs": {name: {**vector, "dtype": dtype} for name, dtype in (outputs or {"y": "float32"}).items()},
        "reference": reference,
    }
    (root / "definition.json").write_text(json.dumps(definition))
    line = {"uuid": "n4096", "axes": {"n": 4096}, "inputs": {"x": {"type": "random"}}}
    (root / "workload.jsonl").write_text(json.dumps(line) + "\n")
    return root


def measured(gpu: JudgeProcess, problem: Path, variants: tuple[MoreBaseline, ...] = ()) -> JudgeAnswer:
    answer = courtroom.judge(gpu, problem, None, more_variants=variants)
    assert answer.verdict == "PASSED", answer.reason
    for clock, table in (("bounded", answer.baselines), ("sealed", answer.sealed_baselines)):
        sys.stdout.write(f"{problem.name} {clock}: {json.dumps(table)}\n")
    sys.stdout.write(f"{problem.name}: {answer.environment.model_extra}\n")
    return answer


def missing(answer: JudgeAnswer, name: str) -> dict[str, Any]:
    reasons: dict[str, Any] = (answer.environment.model_extra or {}).get(name, {})
    return reasons


def test_a_chain_of_short_launches_is_faster_as_a_graph(gpu: JudgeProcess, tmp_path: Path) -> None:
    answer = measured(gpu, vectors(tmp_path, CHAIN))
    assert missing(answer, "missing_baselines") == missing(answer, "missing_sealed_baselines") == {}
    times = answer.baselines["n4096"]
    eager, graph, compiled = times["eager"], times["cuda_graph"], times["compile_graph"]
    assert eager is not None
    assert graph is not None
    assert compiled is not None
    assert graph < 0.8 * eager, "a replay has no launches from Python"
    assert compiled < graph, "the compiled reference is one kernel"
    assert "max_autotune" not in times, "the reference has no products"
    assert "eager" in answer.screened["n4096"]


@pytest.mark.parametrize("name", ["linear", "norm"])
def test_each_form_is_right_and_can_be_raced(gpu: JudgeProcess, tmp_path: Path, name: str) -> None:
    problem = write_problem(tmp_path, name)
    answer = measured(gpu, problem)
    (uuid,) = answer.baselines
    candidate = HONEST[name].write(tmp_path / "candidate", {})
    variants: tuple[Variant, ...] = (*GRAPHS, "max_autotune") if name == "linear" else GRAPHS
    for variant in variants:
        assert answer.baselines[uuid][variant] is not None, missing(answer, "missing_baselines")
        assert answer.sealed_baselines[uuid][variant] is not None, missing(answer, "missing_sealed_baselines")
        raced = courtroom.judge(
            gpu, problem, candidate, baseline={uuid: variant}, sealed_baseline={uuid: variant}, half_width=0.05
        )
        assert raced.verdict == "PASSED", raced.reason
        assert raced.workloads[0].variant == variant
        baseline_us = raced.workloads[0].baseline_us
        sys.stdout.write(f"{name} against {variant}: {baseline_us} us, {raced.workloads[0].speedup}x\n")
        table = answer.sealed_baselines if raced.trust == "sealed" else answer.baselines
        screened = answer.sealed_screened if raced.trust == "sealed" else answer.screened
        assert baseline_us == pytest.approx(table[uuid][variant], rel=0.5 if variant in screened[uuid] else 0.25)


def test_a_graph_that_cannot_be_captured_is_missing_with_its_reason(gpu: JudgeProcess, tmp_path: Path) -> None:
    answer = measured(gpu, vectors(tmp_path, WAITING))
    assert answer.baselines["n4096"]["cuda_graph"] is None
    assert "workload n4096" in missing(answer, "missing_baselines")["cuda_graph"]
    assert answer.baselines["n4096"]["eager"] is not None


SEVERAL_DTYPES = "import torch\n\ndef run(x):\n    return x + 1, x.to(torch.bfloat16), (x > 1).to(torch.int32)\n"


def test_a_reference_with_outputs_of_several_dtypes_is_compiled(gpu: JudgeProcess, tmp_path: Path) -> None:
    dtypes = {"y": "float32", "half": "bfloat16", "above": "int32"}
    answer = measured(gpu, vectors(tmp_path, SEVERAL_DTYPES, dtypes))
    assert missing(answer, "missing_baselines") == missing(answer, "missing_sealed_baselines") == {}
    assert None not in answer.baselines["n4096"].values()


def test_backends_of_attention_and_files_are_measured(gpu: JudgeProcess, tmp_path: Path) -> None:
    problem = vectors(tmp_path, ATTENTION)
    (problem / "baselines").mkdir()
    (problem / "baselines" / "torch_call.py").write_text(ATTENTION)
    answer = measured(gpu, problem, ("sdpa_math", "sdpa_flash", "sdpa_efficient", "cublaslt", "library"))
    times = answer.baselines["n4096"]
    assert "cublaslt" not in times, "the reference has no matrix product"
    for variant in ("sdpa_math", "sdpa_efficient", "library_torch_call"):
        assert times[variant] is not None, missing(answer, "missing_baselines")
    assert times["sdpa_flash"] is None
    assert "sdpa_flash" in missing(answer, "missing_baselines")


def test_cublaslt_computes_the_products_of_a_reference(gpu: JudgeProcess, tmp_path: Path) -> None:
    answer = measured(gpu, write_problem(tmp_path, "linear"), ("cublaslt",))
    (times,) = answer.baselines.values()
    assert times["cublaslt"] is not None, missing(answer, "missing_baselines")
