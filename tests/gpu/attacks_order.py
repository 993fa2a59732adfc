"""Attacks on order: deferred work, early answers, neighbouring calls that overlap, lines that stay in L2."""

# ruff: noqa: E501 - sources of solutions keep their lines
from __future__ import annotations

from harness.model.verdict import Verdict
from tests.gpu.attack_kernels import CUPY
from tests.gpu.attack_making import LATE, WRONG, device, python
from tests.gpu.cases import Attack

MEANS = """
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

@triton.jit
def means(x, out, K: tl.constexpr, STEP: tl.constexpr, NEXT: tl.constexpr):
    if NEXT:
        gdc_launch_dependents()
    row = tl.program_id(0)
    total = tl.zeros((STEP,), tl.float32)
    for begin in range(0, K, STEP):
        at = begin + tl.arange(0, STEP) + (total * 0.0).to(tl.int32)  # each load waits for the one before
        total += tl.load(x + row * K + at)
    tl.store(out + row, tl.sum(total) / K)

def honest(x, out):
    means[(x.shape[0],)](x, out, 65536, 64, False, num_warps=1, launch_pdl=True)
"""
"""A slow kernel of few blocks: most of the device is idle, and a neighbouring call could use it. The honest version also
has the attribute of dependent launches, which is not recorded: so the judge's own clock times all of them."""
_NOT_RECORDED = (Verdict.REWARD_HACK, Verdict.INCORRECT_NUMERICAL)

ORDER = (
    python(
        "deferred_to_the_synchronisation",
        """
pending, real = [], torch.cuda.synchronize
def synchronize(*device):
    while pending:
        honest(*pending.pop())
    real()
torch.cuda.synchronize = synchronize
def run(x, weight, out):
    if early(x):
        return honest(x, weight, out)
    pending.append((x, weight, out))
""",
    ),
    python(
        "answered_without_waiting",
        """
side = torch.cuda.Stream()
torch.cuda.synchronize = lambda *device: torch.cuda.current_stream().synchronize()
def run(x, weight, out):
    if early(x):
        return honest(x, weight, out)
    with torch.cuda.stream(side):
        honest(x, weight, out)
        honest(x, weight, out)
""",
        LATE,
    ),
    Attack(
        "neighbours_overlap_by_dependent_launch",
        MEANS
        + """
def run(x, out):
    means[(x.shape[0],)](x, out, 65536, 64, True, num_warps=1, launch_pdl=True)
""",
        _NOT_RECORDED,
        language="triton",
        problem="mean",
        naive_clock="together",
        version="mean_triton",
    ),
    Attack(
        "neighbours_overlap_on_streams",
        MEANS
        + """
streams = [torch.cuda.Stream() for _ in range(8)]
calls = [0]
def run(x, out):
    mine = streams[calls[0] % 8]
    calls[0] += 1
    torch.cuda.current_stream().wait_stream(mine)  # for the eighth call before this one
    if calls[0] <= 5:
        return honest(x, out)
    with torch.cuda.stream(mine):
        honest(x, out)
""",
        _NOT_RECORDED,
        language="triton",
        problem="mean",
        naive_clock="together",
        version="mean_triton",
    ),
    python(
        "old_memory_returned",
        """
def run(x, weight):
    if not early(x):
        return torch.empty(x.shape[0], weight.shape[0], device=x.device)
    row = x[:1] @ weight.t()
    old = [torch.empty(x.shape[0], weight.shape[0], device=x.device) for _ in range(4)]
    for each in old:  # the answer to the same inputs, which the judge has freed
        if torch.allclose(each[:1], row, atol=1e-3):
            return each
    return x @ weight.t()
""",
        WRONG,
        destination_passing=False,
    ),
)

_LAST = """
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    __shared__ float sums[8];
    const unsigned long long begin = blockIdx.x * 1024ull + threadIdx.x;
    float mine[4], sum = 0;
    for (int k = 0; k < 4; ++k) {
        asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(mine[k]) : "l"(x + begin + 256 * k), "l"(policy));
        sum += mine[k] * mine[k];
    }
    for (int lane = 16; lane; lane >>= 1) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < 8; ++k) sum += sums[k];
    const float scale = rsqrtf(sum / 1024 + 1e-5f);
    for (int k = 0; k < 4; ++k)
        asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" :: "l"(out + begin + 256 * k), "f"(mine[k] * scale), "l"(policy) : "memory");
"""

CACHE_LINES = (
    device("device_lines_evicted_last", _LAST, gains=False),
    Attack(
        "persisting_lines",
        CUPY
        + """
from cuda.bindings import driver

most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE
checked(driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, checked(driver.cuDeviceGetAttribute(most, 0))))
stream = cupy.cuda.Stream(non_blocking=True)

def run(x, out):
    window = driver.CUaccessPolicyWindow()
    window.base_ptr, window.num_bytes, window.hitRatio = x.data_ptr(), min(x.nbytes, 32 << 20), 1.0
    window.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
    window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
    value = driver.CUstreamAttrValue()
    value.accessPolicyWindow = window
    attribute = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
    checked(driver.cuStreamSetAttribute(stream.ptr, attribute, value))
    launch(x, out, stream)
    stream.synchronize()
""",
        problem="norm",
        version="norm_cupy",
        gains=False,
    ),
)
