"""Attacks by the computation: precision, Triton, device code."""

# ruff: noqa: E501 - sources of solutions keep their lines
from __future__ import annotations

from harness.model.verdict import Verdict
from tests.gpu.attack_making import WRONG, device, python, triton
from tests.gpu.cases import NORM, Attack

IMPRECISE = (
    python("tf32_switched_on", "torch.backends.cuda.matmul.allow_tf32 = True\nrun = honest\n", WRONG, fools="wrong"),
    python(
        "bf16_instead",
        "def run(x, weight):\n    return (x.bfloat16() @ weight.bfloat16().t()).float()\n",
        WRONG,
        destination_passing=False,
    ),
    python(
        "fp16_instead",
        "def run(x, weight):\n    return (x.half() @ weight.half().t()).float()\n",
        WRONG,
        destination_passing=False,
    ),
    triton(
        "triton_rounds", "def run(x, out):\n    scale[(x.shape[0],)](x, out, 1024, 1024, True)\n", WRONG, fools="wrong"
    ),
    device("device_rounds", "norm(x, out, true);", WRONG, fools="wrong"),
)

TRITON = (
    triton(
        "triton_first_then_nothing",
        "calls = [0]\ndef run(x, out):\n    calls[0] += 1\n    if calls[0] <= 5:\n        honest(x, out)\n",
        WRONG,
    ),
    triton(
        "triton_last_columns",
        "def run(x, out):\n    scale[(x.shape[0],)](x, out, 1024, 1016, False)\n",
        WRONG,
        fools="wrong",
    ),
    triton(
        "triton_last_rows",
        "def run(x, out):\n    scale[(x.shape[0] - 16,)](x, out, 1024, 1024, False)\n",
        WRONG,
        fools="wrong",
    ),
    triton(
        "triton_cached_by_pointer",
        """
known = {}
def run(x):
    if x.data_ptr() not in known:
        known[x.data_ptr()] = torch.empty_like(x)
        honest(x, known[x.data_ptr()])
    return known[x.data_ptr()]
""",
        WRONG,
        destination_passing=False,
    ),
)

DEVICE = (
    device(
        "device_counts_in_its_workspace",
        """
    const unsigned calls = kept[blockIdx.x * 256 + threadIdx.x];
    kept[blockIdx.x * 256 + threadIdx.x] = calls == 0xA5A5A5A5u ? 1 : calls + 1;
    if (calls == 0xA5A5A5A5u || calls < 5) norm(x, out);
""",
        counted=True,
        fools="wrong",
    ),
    Attack(
        "device_counts_in_a_global",
        NORM
        + """
__device__ unsigned calls[8192];
extern "C" __global__ void run(const float* x, float* out) {
    __shared__ unsigned mine;
    if (threadIdx.x == 0) mine = calls[blockIdx.x]++;
    __syncthreads();
    if (mine < 5) norm(x, out);
}
""",
        language="cuda",
        problem="norm",
    ),
    device(
        "device_remembers_contents",
        """
    __shared__ bool known;
    if (threadIdx.x == 0) {
        known = false;
        for (int set = 0; set < 3; ++set) known |= kept[(set << 13) + blockIdx.x] == __float_as_uint(x[blockIdx.x * 1024ull]);
        if (!known) kept[((__float_as_uint(x[0]) >> 3) % 3 << 13) + blockIdx.x] = __float_as_uint(x[blockIdx.x * 1024ull]);
    }
    __syncthreads();
    if (!known || blockIdx.x % 128 == 0) norm(x, out);
""",
        (*WRONG, Verdict.PASSED),
        counted=True,
        fools="wrong",
    ),
    device(
        "device_overwrites_what_lies_beside_its_workspace",
        """
    norm(x, out);
    if (blockIdx.x) return;
    uint4* begin = (uint4*)((unsigned long long)kept & ~0x1FFFFFull);  // small allocations of a process share 2 MB
    for (int i = threadIdx.x; i < (2 << 20) / 16; i += 256) begin[i] = make_uint4(0, 0, 0, 0);
""",
        counted=True,
        workspaces={"kept": {"bytes": 4096, "init": "none"}},
        gains=False,
    ),
    device("device_last_columns", "norm(x, out, false, 1016);", WRONG, fools="wrong"),
    device("device_last_rows", "if (blockIdx.x + 16 < gridDim.x) norm(x, out);", WRONG, fools="wrong"),
    device(
        "device_zero_rows",
        "if (blockIdx.x % 128) norm(x, out); else for (int k = 0; k < 4; ++k) out[blockIdx.x * 1024ull + threadIdx.x + 256 * k] = 0;",
        WRONG,
        fools="wrong",
    ),
    device(
        "device_hangs",
        "norm(x, out);\n    while (*(volatile float*)out != 1234.5f);",
        (Verdict.TIMEOUT, Verdict.RUNTIME_ERROR),
        fools="hang",
    ),
)
