from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest
import torch

from harness.formats.problems import list_problems, load_problem
from harness.judge import memory_forecast
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.memory_forecast import REFERENCE_MULTIPLE, TRUTH_MULTIPLE, forecast
from harness.judge.precision import outputs_in
from harness.judge.reference import Value, load_reference
from harness.judge.truth.memory_budget import MemoryBudget, memory_budget
from harness.model.problem import Problem
from tests.judge.problem_in_memory import problem, tensor

PROBLEMS = Path(__file__).parents[2] / "problems"
N = 128
ELEMENTS = N * N


@pytest.fixture(autouse=True)
def _no_earlier_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems in memory share a digest."""
    monkeypatch.setattr(memory_forecast, "_forecasts", {})


def matrix_problem(code: str, n: int = N) -> Problem:
    return problem({"x": tensor("bfloat16", "N", "N")}, {"out": tensor("bfloat16", "N", "N")}, code, {"N": n})


def test_the_peak_of_a_chain() -> None:
    code = (
        "def run(x):\n"
        "    wide = x.float()\n"  # 4 bytes per element; the float64 run has no copy
        "    squared = wide * wide\n"  # 4
        "    total = squared + wide\n"  # 4: the peak of both runs
        "    del squared, wide\n"
        "    return total.to(x.dtype)\n"  # 2, with `total` 6
    )
    sample_problem = matrix_problem(code)
    memory = forecast(sample_problem, sample_problem.workloads[0])
    assert memory.is_traced, memory.untraced_reason
    assert memory.input_bytes == memory.output_bytes == 2 * ELEMENTS
    assert memory.reference_bytes == 12 * ELEMENTS
    assert memory.truth_bytes == 3 * 8 * ELEMENTS  # the input, `squared` and `total`


def test_the_peak_of_views_updates_and_dead_tensors() -> None:
    code = (
        "import torch\n"
        "def run(x):\n"
        "    sums = torch.zeros_like(x)\n"  # 2
        "    for row in x.unbind(0):\n"
        "        sums.add_(row)\n"
        "    for _ in range(5):\n"
        "        sums = sums.T.contiguous()\n"  # 2 more while it is copied
        "    return sums\n"
    )
    sample_problem = matrix_problem(code)
    memory = forecast(sample_problem, sample_problem.workloads[0])
    assert (memory.reference_bytes, memory.truth_bytes) == (2 * 2 * ELEMENTS, 3 * 8 * ELEMENTS)


def test_attention_takes_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch\ndef run(x):\n    return torch.nn.functional.scaled_dot_product_attention(x, x, x)\n"
    sample_problem = matrix_problem(code, 4096)
    memory = forecast(sample_problem, sample_problem.workloads[0])
    elements = 4096**2
    assert memory.reference_bytes == 2 * elements
    assert memory.truth_bytes == 2 * 8 * elements + 3 * 8 * elements  # all scores fit into one block
    monkeypatch.setattr(memory_forecast, "_forecasts", {})
    monkeypatch.setattr("harness.judge.truth.attention.BLOCK_BYTES", 2**20)
    memory = forecast(sample_problem, sample_problem.workloads[0])
    assert memory.truth_bytes == 2 * 8 * elements + 3 * 2**20


def test_integers_and_masks_keep_their_bytes() -> None:
    sample_problem = problem(
        {"x": tensor("int32", "N", "N")},
        {"out": tensor("bool", "N", "N")},
        "def run(x):\n    return (x + 1) > 0\n",
        {"N": 4096},
    )
    memory = forecast(sample_problem, sample_problem.workloads[0])
    elements = 4096**2
    assert (memory.reference_bytes, memory.truth_bytes) == (5 * elements, 9 * elements)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def run(x):\n    raise ValueError('no trace')\n", "ValueError: no trace"),
        ("def run(x):\n    while True:\n        x = x + 1\n", "LimitReachedError: its analysis takes more than 1 s"),
    ],
)
def test_without_a_trace_the_peaks_are_multiples_of_inputs_and_outputs(code: str, reason: str) -> None:
    sample_problem = matrix_problem(code)
    memory = forecast(sample_problem, sample_problem.workloads[0])
    io_bytes = layout_of(sample_problem, sample_problem.workloads[0]).io_bytes
    assert not memory.is_traced
    assert memory.untraced_reason == reason
    assert memory.reference_bytes == REFERENCE_MULTIPLE * io_bytes
    assert memory.truth_bytes == TRUTH_MULTIPLE * io_bytes


def test_a_forecast_is_made_once_for_a_digest_and_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    sample_problem = matrix_problem("def run(x):\n    return x + 1\n")
    first = forecast(sample_problem, sample_problem.workloads[0])
    monkeypatch.setattr(memory_forecast, "load_reference", None)
    assert forecast(sample_problem, sample_problem.workloads[0]) is first


@pytest.mark.parametrize(
    "key",
    ["encoder/mobilebert_layer", "llm/llama_rotary_embedding", "moe/topk_routing", "quantised/quantise_fp8_token"],
)
def test_forecasts_are_close_to_the_real_peaks(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks: list[int] = []
    close = MemoryBudget.close

    def recorded(budget: MemoryBudget) -> None:
        peaks.append(budget.peak_bytes)
        close(budget)

    monkeypatch.setattr(MemoryBudget, "close", recorded)
    sample_problem = load_problem(PROBLEMS / key, key=key)
    workload = min(sample_problem.workloads, key=lambda item: layout_of(sample_problem, item).io_bytes)
    reference = load_reference(sample_problem)
    inputs: list[Value] = list(InputSource(sample_problem, seed=5).draw(workload).values())
    outputs_in(torch.float64, reference, inputs, 2**60)
    with memory_budget(2**60, "cpu"):
        reference.outputs(inputs)
    memory = forecast(sample_problem, workload)
    assert memory.is_traced
    assert peaks[0] <= memory.truth_bytes <= 1.1 * peaks[0]
    assert peaks[1] <= memory.reference_bytes <= 1.1 * peaks[1]


@pytest.mark.slow
def test_every_shipped_workload_is_traced_quickly() -> None:
    seconds, untraced = [], []
    for key in list_problems(PROBLEMS):
        sample_problem = load_problem(PROBLEMS / key, key=key)
        for workload in sample_problem.workloads:
            begin_s = time.thread_time()
            memory = forecast(sample_problem, workload)
            seconds.append(time.thread_time() - begin_s)
            if not memory.is_traced:
                untraced.append(f"{key} {workload.uuid}: {memory.untraced_reason}")
    assert median(seconds) < 0.05
    assert len(untraced) < 0.01 * len(seconds), untraced
