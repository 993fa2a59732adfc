"""Honest solutions of every kind pass, and none is held for being too fast."""

from __future__ import annotations

import pytest

from harness.model.verdict import Trust, Verdict
from tests.gpu.attack_making import TRITON_SOURCE
from tests.gpu.cases import EARLY, NORM, Attack
from tests.gpu.conftest import GpuCourts

_KERNEL = TRITON_SOURCE.replace("def honest", "def plain")
HONEST = (
    Attack("plain", EARLY + "run = honest\n"),
    Attack("returned", "def run(x, weight):\n    return x @ weight.t()\n", destination_passing=False),
    Attack(
        "graph_inside",
        """
import torch
graphs = {}
def run(x, weight, out):
    if x.shape not in graphs:
        a, b = x.clone(), weight.clone()
        torch.mm(a, b.t())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = torch.mm(a, b.t())
        graphs[x.shape] = graph, a, b, c
    graph, a, b, c = graphs[x.shape]
    a.copy_(x), b.copy_(weight)
    graph.replay()
    out.copy_(c)
""",
    ),
    Attack(
        "streams_joined",
        """
import torch
side = torch.cuda.Stream()
def run(x, weight, out):
    half = x.shape[0] // 2
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.mm(x[:half], weight.t(), out=out[:half])
    torch.mm(x[half:], weight.t(), out=out[half:])
    torch.cuda.current_stream().wait_stream(side)
""",
    ),
    Attack(
        "workspace_reused",
        """
import torch
kept = {}
def run(x, weight, out):
    space = kept.setdefault(x.shape, torch.empty(x.shape[0], weight.shape[0], device=x.device))
    torch.mm(x, weight.t(), out=space)
    out.copy_(space)
""",
    ),
    Attack(
        "split_k",
        """
import torch
def run(x, weight, out):
    out.zero_()
    for k in range(0, 1024, 512):
        out.addmm_(x[:, k:k + 512], weight[:, k:k + 512].t())
""",
    ),
    Attack("triton", _KERNEL + "run = plain\n", language="triton", problem="norm"),
    Attack(
        "triton_autotuned",
        _KERNEL.replace(
            "@triton.jit", "@triton.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], key=['K'])\n@triton.jit"
        )
        + "run = plain\n",
        language="triton",
        problem="norm",
    ),
    Attack(
        "triton_persistent",
        """
import torch
import triton
import triton.language as tl

@triton.jit
def rows(x, out, M, K: tl.constexpr):
    at = tl.arange(0, K)
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        v = tl.load(x + row * K + at)
        tl.store(out + row * K + at, v / tl.sqrt(tl.sum(v * v) / K + 1e-5))

def run(x, out):
    rows[(264,)](x, out, x.shape[0], 1024)
""",
        language="triton",
        problem="norm",
    ),
    Attack(
        "sealed",
        NORM + 'extern "C" __global__ void run(const float* x, float* out) { norm(x, out); }\n',
        language="cuda",
        problem="norm",
    ),
    Attack(
        "sealed_two_launches",
        """
extern "C" __global__ void run(const float* x, float* kept) {
    __shared__ float parts[8];
    float sum = 0;
    for (int k = threadIdx.x; k < 1024; k += 256) sum += x[blockIdx.x * 1024ull + k] * x[blockIdx.x * 1024ull + k];
    for (int lane = 16; lane; lane >>= 1) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) for (int k = 0; k < 8; ++k) kept[blockIdx.x] += parts[k];
}
extern "C" __global__ void scale(const float* x, float* out, const float* kept) {
    const float by = rsqrtf(kept[blockIdx.x] / 1024 + 1e-5f);
    for (int k = threadIdx.x; k < 1024; k += 256) out[blockIdx.x * 1024ull + k] = x[blockIdx.x * 1024ull + k] * by;
}
""",
        language="cuda",
        problem="norm",
        workspaces={"kept": {"bytes": "4 * M", "init": 0}},
        launch=(
            {"kernel": "run", "grid": ["M"], "block": [256], "args": ["x", {"workspace": "kept"}]},
            {"kernel": "scale", "grid": ["M"], "block": [256], "args": ["x", "out", {"workspace": "kept"}]},
        ),
    ),
)


@pytest.mark.parametrize("solution", HONEST, ids=lambda each: each.name)
def test_passes(solution: Attack, courts: GpuCourts) -> None:
    answer = courts.real(solution, max_judge_s=60.0)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert (answer.trust is Trust.SEALED) == (solution.language == "cuda")
    for workload in answer.workloads:
        assert workload.latency_us is not None
        assert workload.floor_us is None or workload.floor_us <= workload.latency_us
        assert workload.checked >= 200
