"""Honest device code: sealed kernels and Triton with common hardware features."""

# ruff: noqa: E501 - sources of solutions keep their lines
from __future__ import annotations

from typing import Any

from tests.gpu.attack_making import TRITON_SOURCE
from tests.gpu.cases import NORM, Attack

_KERNEL = TRITON_SOURCE.replace("def honest", "def plain")
_SUM = """
__device__ float block_sum(float sum) {
    __shared__ float parts[8];
    for (int lane = 16; lane; lane >>= 1) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < 8; ++k) sum += parts[k];
    __syncthreads();
    return sum;
}
"""


def _sealed(name: str, source: str, *launch: dict[str, Any], workspaces: dict[str, Any] | None = None) -> Attack:
    return Attack(name, source, language="cuda", problem="norm", launch=launch, workspaces=workspaces or {})


def _triton(name: str, source: str) -> Attack:
    return Attack(name, source, language="triton", problem="norm")


SEALED = (
    _sealed(
        "sealed",
        NORM + 'extern "C" __global__ void run(const float* x, float* out) { norm(x, out); }\n',
        {"kernel": "run", "grid": ["M"], "block": [256], "args": ["x", "out"]},
    ),
    _sealed(
        "sealed_two_launches",
        _SUM
        + """
extern "C" __global__ void run(const float* x, float* kept) {
    float sum = 0;
    for (int k = threadIdx.x; k < 1024; k += 256) sum += x[blockIdx.x * 1024ull + k] * x[blockIdx.x * 1024ull + k];
    sum = block_sum(sum);
    if (threadIdx.x == 0) kept[blockIdx.x] += sum;
}
extern "C" __global__ void scale(const float* x, float* out, const float* kept) {
    const float by = rsqrtf(kept[blockIdx.x] / 1024 + 1e-5f);
    for (int k = threadIdx.x; k < 1024; k += 256) out[blockIdx.x * 1024ull + k] = x[blockIdx.x * 1024ull + k] * by;
}
""",
        {"kernel": "run", "grid": ["M"], "block": [256], "args": ["x", {"workspace": "kept"}]},
        {"kernel": "scale", "grid": ["M"], "block": [256], "args": ["x", "out", {"workspace": "kept"}]},
        workspaces={"kept": {"bytes": "4 * M", "init": 0}},
    ),
    _sealed(
        "sealed_atomics",
        """
extern "C" __global__ void run(const float* x, float* kept) {
    const float value = x[blockIdx.x * 1024ull + blockIdx.y * 256 + threadIdx.x];
    float sum = value * value;
    for (int lane = 16; lane; lane >>= 1) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(kept + blockIdx.x, sum);
}
extern "C" __global__ void scale(const float* x, float* out, const float* kept) {
    const unsigned long long at = blockIdx.x * 1024ull + blockIdx.y * 256 + threadIdx.x;
    out[at] = x[at] * rsqrtf(kept[blockIdx.x] / 1024 + 1e-5f);
}
""",
        {"kernel": "run", "grid": ["M", 4], "block": [256], "args": ["x", {"workspace": "kept"}]},
        {"kernel": "scale", "grid": ["M", 4], "block": [256], "args": ["x", "out", {"workspace": "kept"}]},
        workspaces={"kept": {"bytes": "4 * M", "init": 0}},
    ),
    _sealed(
        "sealed_cooperative_launch",
        _SUM
        + """
#include <cooperative_groups.h>
extern "C" __global__ void run(const float* x, float* out, float* kept, int rows) {
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum = 0;
        for (int k = threadIdx.x; k < 1024; k += 256) sum += x[row * 1024ull + k] * x[row * 1024ull + k];
        sum = block_sum(sum);
        if (threadIdx.x == 0) kept[row] = sum;
    }
    cooperative_groups::this_grid().sync();
    for (int row = gridDim.x - 1 - blockIdx.x; row < rows; row += gridDim.x) {
        const float by = rsqrtf(kept[row] / 1024 + 1e-5f);
        for (int k = threadIdx.x; k < 1024; k += 256) out[row * 1024ull + k] = x[row * 1024ull + k] * by;
    }
}
""",
        {"kernel": "run", "grid": [132], "block": [256], "cooperative": True,
         "args": ["x", "out", {"workspace": "kept"}, {"i32": "M"}]},
        workspaces={"kept": {"bytes": "4 * M", "init": "none"}},
    ),
    _sealed(
        "sealed_cluster_with_tma",
        _SUM
        + """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };

// A row is shared by a cluster of two blocks; each loads its half by bulk tensor copies.
extern "C" __global__ void run(const __grid_constant__ CUtensorMap map, float* out) {
    __shared__ __align__(128) float half[512];
    __shared__ __align__(8) unsigned long long barrier;
    __shared__ float mine;
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
    cg::cluster_group cluster = cg::this_cluster();
    const int row = blockIdx.x / 2, begin = 512 * cluster.block_rank();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(2048) : "memory");
        for (int tile = 0; tile < 2; ++tile)
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                ::"r"((unsigned)__cvta_generic_to_shared(half) + tile * 1024), "l"(&map), "r"(begin + 256 * tile), "r"(row), "r"(bar) : "memory");
    }
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
    const float a = half[threadIdx.x], b = half[threadIdx.x + 256];
    const float sum = block_sum(a * a + b * b);
    if (threadIdx.x == 0) mine = sum;
    cluster.sync();
    const float by = rsqrtf((*cluster.map_shared_rank(&mine, 0) + *cluster.map_shared_rank(&mine, 1)) / 1024 + 1e-5f);
    out[row * 1024ull + begin + threadIdx.x] = a * by;
    out[row * 1024ull + begin + threadIdx.x + 256] = b * by;
    cluster.sync();  // no block may end while another still reads its sum
}
""",
        {"kernel": "run", "grid": ["2 * M"], "block": [256], "cluster": [2],
         "args": [{"tensor_map": {"tensor": "x", "dims": ["K", "M"], "box": [256, 1]}}, "out"]},
    ),
    _sealed(
        "sealed_persistent_in_dynamic_shared_memory",
        _SUM
        + """
extern "C" __global__ void run(const float* x, float* out, int rows) {
    extern __shared__ float kept[];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum = 0;
        for (int k = threadIdx.x; k < 1024; k += 256) {
            kept[k] = __ldcs(x + row * 1024ull + k);
            sum += kept[k] * kept[k];
        }
        const float by = rsqrtf(block_sum(sum) / 1024 + 1e-5f);
        for (int k = threadIdx.x; k < 1024; k += 256) __stcs(out + row * 1024ull + k, kept[k] * by);
    }
}
""",
        {"kernel": "run", "grid": [264], "block": [256], "shared_bytes": 65536, "args": ["x", "out", {"i32": "M"}]},
    ),
)  # fmt: skip

TRITON = (
    _triton("triton", _KERNEL + "run = plain\n"),
    _triton(
        "triton_autotuned",
        _KERNEL.replace(
            "@triton.jit", "@triton.autotune([triton.Config({}, num_warps=w) for w in (4, 8)], key=['K'])\n@triton.jit"
        )
        + "run = plain\n",
    ),
    _triton(
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
    ),
    _triton(
        "triton_atomics",
        """
import torch
import triton
import triton.language as tl

@triton.jit
def squares(x, sums, K: tl.constexpr, PART: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    v = tl.load(x + row * K + part * PART + tl.arange(0, PART))
    tl.atomic_add(sums + row, tl.sum(v * v))

@triton.jit
def scaled(x, out, sums, K: tl.constexpr):
    at = tl.program_id(0) * K + tl.arange(0, K)
    tl.store(out + at, tl.load(x + at) * tl.rsqrt(tl.load(sums + tl.program_id(0)) / K + 1e-5))

def run(x, out):
    sums = torch.zeros(x.shape[0], device=x.device)
    squares[(x.shape[0], 4)](x, sums, 1024, 256)
    scaled[(x.shape[0],)](x, out, sums, 1024)
""",
    ),
    _triton(
        "triton_tensor_descriptors",
        """
import torch
import triton
import triton.language as tl

@triton.jit
def rows(x, out, M, K: tl.constexpr, PART: tl.constexpr):
    given = tl.make_tensor_descriptor(x, shape=[M, K], strides=[K, 1], block_shape=[1, PART])
    made = tl.make_tensor_descriptor(out, shape=[M, K], strides=[K, 1], block_shape=[1, PART])
    row = tl.program_id(0)
    sums = tl.zeros((1, PART), tl.float32)
    for begin in range(0, K, PART):
        v = given.load([row, begin])
        sums += v * v
    by = tl.rsqrt(tl.sum(sums) / K + 1e-5)
    for begin in range(0, K, PART):
        made.store([row, begin], given.load([row, begin]) * by)

def run(x, out):
    rows[(x.shape[0],)](x, out, x.shape[0], 1024, 256)

triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))
""",
    ),
)
