"""Six typical mistakes of agents: the answer of `check` names each of them.

The answers come through the same tool as an agent's. The mistake with registers is in a sealed CUDA build, which needs
no GPU. `python -m pytest tests/judge/test_six_mistakes.py -s` prints the complete answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from harness.agents.agent_tools import AgentTools
from harness.agents.answers import check_outcome
from harness.agents.model_access.meter import Meter
from harness.agents.session import Tools
from harness.errors import ConfigurationError
from harness.git.solution_commits import Submission
from harness.judge.build.cuda_builder import SealedBuild
from harness.judge.build.toolkit import find_toolkit
from harness.model.judging import CheckAnswer, CheckedWorkload, CheckReply
from harness.model.verdict import Verdict
from harness.runner import nvrtc
from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import write_cpp
from tests.judge.test_solution_check import order

pytestmark = pytest.mark.xdist_group("judge")

M, N, K = 36, 72, 256
REFERENCE = "def run(x, w):\n    return x.float() @ w.float().T\n"
KERNEL = """
#include <cstdint>
#include <cstring>
#include <immintrin.h>
static float wide(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}
static inline float narrow(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    word += 0x7fff + (word >> 16 & 1);
    word &= 0xffff0000u;
    memcpy(&value, &word, 4);
    return value;
}
extern "C" void scale(const uint16_t* x, const uint16_t* w, float* y, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += wide(x[i * k + l]) * wide(w[j * k + l]);
            y[i * n + j] = sum;
        }
}
"""
TERM = "wide(x[i * k + l]) * wide(w[j * k + l])"
STREAM = " if (j % 8 == 1) _mm256_stream_ps(y + i * n + j, _mm256_set1_ps(sum));"
MISTAKES = {
    "wrong tile edge": (
        KERNEL.replace("i < m", "i < m / 8 * 8"),
        Verdict.INCORRECT_NUMERICAL,
        ["rows 32 to 35 of 36, exactly those beyond the last multiple of 8 or 16 or 32", "never written"],
    ),
    "accumulator that is not reset (on a GPU: a missing barrier)": (
        KERNEL.replace("float sum = 0;", "static float sum;"),
        Verdict.INCORRECT_NUMERICAL,
        [
            "two calls with equal inputs give different outputs: a race (missing barrier)",
            "accumulator that is not reset",
        ],
    ),
    "misaligned vector load": (
        KERNEL.replace("y[i * n + j] = sum;", "y[i * n + j] = sum;" + STREAM),
        Verdict.RUNTIME_ERROR,
        ["SIGSEGV", "misaligned vector load or store"],
    ),
    "sums in the wrong type": (
        KERNEL.replace(f"sum += {TERM};", f"sum = narrow(sum + {TERM});"),
        Verdict.INCORRECT_NUMERICAL,
        ["right but imprecise", "sums or intermediate values in too few bits"],
    ),
    "transposed operand": (
        KERNEL.replace("w[j * k + l]", "w[l * n + j]"),
        Verdict.INCORRECT_NUMERICAL,
        ["unrelated to the expected ones", "transposed or wrongly strided operand"],
    ),
}
REGISTERS = """
extern "C" __global__ void __launch_bounds__(1024, 2) product(const float* x, float* y, int n) {
    float held[96];
    for (int i = 0; i < 96; ++i) held[i] = x[threadIdx.x + i * n];
    for (int k = 0; k < n; ++k)
        for (int i = 0; i < 96; ++i) held[i] = held[i] * held[(i * 7 + 1) % 96] + 1.0f;
    for (int i = 0; i < 96; ++i) y[threadIdx.x + i * n] = held[i];
}
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """The problem `y = x @ w.T` with bfloat16 operands."""
    root = tmp_path / "made" / "linear"
    root.mkdir(parents=True)
    definition = {
        "name": "linear",
        "axes": {"m": {"type": "var"}, "n": {"type": "var"}, "k": {"type": "var"}},
        "inputs": {"x": {"shape": ["m", "k"], "dtype": "bfloat16"}, "w": {"shape": ["n", "k"], "dtype": "bfloat16"}},
        "outputs": {"y": {"shape": ["m", "n"], "dtype": "float32"}},
        "reference": REFERENCE,
    }
    (root / "definition.json").write_text(json.dumps(definition))
    tolerance = {"max_atol": 1e-3, "max_rtol": 1e-3, "required_matched_ratio": 0.99}
    inputs = {"x": {"type": "random"}, "w": {"type": "random"}}
    workload = {"uuid": "small", "axes": {"m": M, "n": N, "k": K}, "inputs": inputs, "tolerance": tolerance}
    (root / "workload.jsonl").write_text(json.dumps(workload) + "\n")
    return root


def agent(court: JudgeProcess, problem: Path, solution: Path) -> AgentTools:
    """Return the tools of an agent whose solution is a directory."""

    def check(show: str, function: str) -> CheckReply:
        return CheckReply(answer=court.check(order(problem, solution, show=show, function=function)))

    tools = Tools(
        commit=lambda _: Submission("", "", ""),
        outcome=lambda _: None,
        history=tuple,
        note=lambda *_: None,
        turn=nullcontext,
        check=check,
    )
    axes = {"small": f"m={M} n={N} k={K}"}
    meter = cast("Meter", None)  # a check costs nothing
    return AgentTools(tools, target="cpu", axes=axes, hide=str, meter=meter)


def test_the_kernel_without_a_mistake_passes(court: JudgeProcess, problem: Path, tmp_path: Path) -> None:
    answer = agent(court, problem, write_cpp(tmp_path / "solution", KERNEL)).check({})
    assert not answer.failed, answer.text
    assert answer.text.startswith("PASSED without timing: correct on 1 workloads")


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_an_answer_names_the_mistake(court: JudgeProcess, problem: Path, tmp_path: Path, name: str) -> None:
    source, verdict, expected = MISTAKES[name]
    assert source != KERNEL
    answer = agent(court, problem, write_cpp(tmp_path / "solution", source)).check({})
    sys.stdout.write(f"\n--- {name}\n{answer.text}\n")
    assert answer.text.startswith(str(verdict)), answer.text
    for text in expected:
        assert text in answer.text
    for other_name, (_, _, expected_of_other) in MISTAKES.items():
        assert other_name == name or not all(text in answer.text for text in expected_of_other), (
            f"it could be {other_name}"
        )


def test_a_sealed_build_names_spills(tmp_path: Path) -> None:
    try:
        toolkit = find_toolkit()
    except ConfigurationError:
        pytest.fail("the tests need NVRTC: pip install nvidia-cuda-nvrtc")
    (tmp_path / "kernel.cu").write_text(REGISTERS)
    request = {
        "library": str(toolkit.library),
        "includes": [str(path) for path in toolkit.includes],
        "source": str(tmp_path / "kernel.cu"),
        "architecture": "sm_90a",
        "options": ["-std=c++17", "-default-device", "--ptxas-options=-v"],
        "kernels": ["product"],
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-I", "-B", str(nvrtc.__file__), str(tmp_path / "request.json"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    report = SealedBuild(tmp_path, {}, cached=False).report
    workloads = (CheckedWorkload(uuid="n4096", verdict=Verdict.PASSED, max_abs_error=0.0),)
    text = check_outcome(
        CheckAnswer(id="1", verdict=Verdict.PASSED, workloads=workloads, build=report, build_s=0.3), axes={}
    )
    sys.stdout.write(f"\n--- out of registers (sealed CUDA)\n{text}\n")
    (kernel,) = report.kernels
    assert (kernel.kernel, kernel.registers) == ("product", 32)
    assert kernel.spill_store_bytes
    assert "kernel product: 32 registers, 0 B static shared memory, SPILLS: " in text
    assert ".entry product(" in (tmp_path / "kernel.ptx").read_text()
