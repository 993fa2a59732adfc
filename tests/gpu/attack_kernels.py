"""Shared device code and Python of attacks on a GPU: kernels by CuPy, and hooks into the runner's own loop."""

# ruff: noqa: E501 - sources of solutions keep their lines
from __future__ import annotations

KERNELS = r"""
__device__ unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ void norm_row(const float* x, float* out, long long row) {
    __shared__ float sums[8];
    __syncthreads();
    float mine[4], sum = 0;
    for (int k = 0; k < 4; ++k) {
        mine[k] = __ldcg(x + row * 1024 + threadIdx.x + 256 * k);
        sum += mine[k] * mine[k];
    }
    for (int lane = 16; lane; lane >>= 1) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < 8; ++k) sum += sums[k];
    const float scale = rsqrtf(sum / 1024 + 1e-5f);
    for (int k = 0; k < 4; ++k) out[row * 1024 + threadIdx.x + 256 * k] = mine[k] * scale;
}

extern "C" __global__ void norm_rows(const float* x, float* out) { norm_row(x, out, blockIdx.x); }

extern "C" __global__ void spin(long long ns) {
    const unsigned long long end = now_ns() + ns;
    while (now_ns() < end) {}
}

extern "C" __global__ void spin_until(volatile long long* stop, long long limit_ns) {
    const unsigned long long end = now_ns() + limit_ns;
    while (!*stop && now_ns() < end) {}
}

// Reads memory so that it is in L2.
extern "C" __global__ void touch(const float4* from, long long words, float* sink) {
    float sum = 0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words; i += (long long)gridDim.x * blockDim.x) {
        const float4 word = __ldcg(from + i);
        sum += word.x + word.y + word.z + word.w;
    }
    if (sum == 1.2345f) *sink = sum;
}

// One thread watches the last input word of each placement, and counts in host memory how often it changed.
extern "C" __global__ void watch(const char* words, long long stride, volatile long long* changed, volatile long long* stop, long long limit_ns) {
    const unsigned long long end = now_ns() + limit_ns;
    volatile const unsigned* word = (volatile const unsigned*)(words + threadIdx.x * stride);
    unsigned last = *word;
    while (!*stop && now_ns() < end) {
        const unsigned now = *word;
        if (now == last) continue;
        last = now;
        const unsigned long long filled = now_ns() + 150000;  // the rest of the set may still be on its way
        while (now_ns() < filled) {}
        changed[threadIdx.x] = changed[threadIdx.x] + 1;
        __threadfence_system();
    }
}

// The first kernel of a graph: waits for the host's counter, then passes on the addresses beside it.
extern "C" __global__ void gate(volatile long long* flag, long long* seen, long long limit_ns) {
    const unsigned long long end = now_ns() + limit_ns;
    while (flag[0] <= seen[0] && now_ns() < end) {}
    seen[0] = flag[0];
    seen[1] = flag[1];
    seen[2] = flag[2];
}

extern "C" __global__ void norm_of_the_gate(const long long* seen) {
    norm_row((const float*)seen[1], (float*)seen[2], blockIdx.x);
}

struct Turn {
    unsigned go, arrived;
    long long placement;
};

// A kernel that never ends reads the judge's requests in the mapped doorbell page, and answers calls there.
extern "C" __global__ void answer_calls(volatile long long* page, const char* in, char* out, long long stride, int rows, volatile Turn* turn, volatile long long* host, long long limit_ns) {
    const unsigned long long end = now_ns() + limit_ns;
    __shared__ long long chosen;
    long long served = page[0];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        host[1] = 1;  // it has started
        __threadfence_system();
    }
    for (unsigned generation = 1;; ++generation) {
        __syncthreads();
        if (threadIdx.x == 0) {
            if (blockIdx.x == 0) {
                chosen = -1;
                while (!host[0] && now_ns() < end) {
                    const long long number = page[0];
                    if (number == served) continue;
                    served = number;
                    if (page[1] != 2) continue;
                    chosen = page[2];
                    break;
                }
                turn->placement = chosen;
                __threadfence();
                turn->go = generation;
            } else {
                while (turn->go < generation) {}
                __threadfence();
                chosen = turn->placement;
            }
        }
        __syncthreads();
        if (chosen < 0) return;
        for (long long row = blockIdx.x; row < rows; row += gridDim.x)
            norm_row((const float*)(in + chosen * stride), (float*)(out + chosen * stride), row);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd((unsigned*)&turn->arrived, 1u);
            if (blockIdx.x == 0) {
                while (turn->arrived < generation * gridDim.x) {}
                __threadfence_system();
                page[4] = 1000;
                __threadfence_system();
                page[3] = served;
            }
        }
    }
}
"""
"""Compiled by NVRTC through CuPy; blocks of 256 threads but for `watch` (a thread per placement) and single threads."""

CUPY = (
    '''
import ctypes
import sys
import time

import cupy
import numpy as np
import torch

module = cupy.RawModule(code=r"""'''
    + KERNELS
    + '''""", options=("-std=c++17",))
i32, i64, u64 = np.int32, np.int64, np.uint64
NEVER = i64(100_000_000_000)  # a runner that is gone must not leave a kernel behind

def kernel(name):
    return module.get_function(name).kernel

def pinned(words):
    memory = cupy.cuda.alloc_pinned_memory(8 * words)
    ctypes.memset(memory.ptr, 0, 8 * words)
    return memory, memoryview((ctypes.c_char * (8 * words)).from_address(memory.ptr)).cast("B").cast("q")

normalise = kernel("norm_rows")

def launch(x, out, stream=None):
    normalise((x.shape[0],), (256,), (u64(x.data_ptr()), u64(out.data_ptr())), 0, stream)

def checked(result):
    code, *values = result
    if int(code):
        raise RuntimeError(str(code))
    return values[0] if values else None
'''
)

WATCH = (
    CUPY
    + '''
from collections import Counter
from runner import cuda_line, doorbell

torch.cuda.synchronize = lambda *device: torch.cuda.current_stream().synchronize()
places = []
run = launch

def nothing(*arguments):
    return False

def replace_loop(arm, idle=nothing, ready=nothing, pinged=nothing):
    """Hooks into the loop that waits for the judge: `ready(p)` is true when the outputs at a placement are there."""
    usual = cuda_line.CudaLine.prepare

    def prepare(self, solution, message, descriptors):
        usual(self, solution, message, descriptors)
        work = self._workload
        for kept in (early, filled, served):
            kept.clear()
        places[:] = [(work.input_tensors(p)[0], work.output_tensors(p)[0]) for p in range(work.slots)]
        launch(*places[0])
        torch.cuda.synchronize()
        arm(work.stride)

    def serve(self, call, ping):
        words = self._words
        answered = words[3]
        while True:
            while words[0] == answered:
                idle()
            answered = words[0]
            request = words[1]
            if request == 2:
                begin = time.perf_counter_ns()
                if not ready(words[2]):
                    call(words[2])
                words[4] = time.perf_counter_ns() - begin
            elif request == 1:
                pinged()
                ping()
            words[3] = answered
            if request == 3:
                return

    cuda_line.CudaLine.prepare = prepare
    doorbell.Doorbell.serve = serve

def last_word(place):
    x = place[0]
    return x.data_ptr() + x.nbytes - 4

early = set()
filled, served = Counter(), Counter()

def begin_early(placement, fills=1):
    """Compute a set that has just arrived, before it is asked for; not one whose call was made before it was noticed."""
    filled[placement] += fills
    if filled[placement] > served[placement]:
        launch(*places[placement])
        early.add(placement)

def begun(placement):
    served[placement] += 1
    if placement not in early:
        return False
    early.discard(placement)
    torch.cuda.synchronize()
    return True
'''
)
"""For a runner of the real judge only: in the naive judge no set of inputs exists before its call."""

TURN = (
    CUPY
    + """
from collections import Counter

torch.cuda.synchronize = lambda *device: torch.cuda.current_stream().synchronize()
side = cupy.cuda.Stream(non_blocking=True)
spinning = kernel("spin")
line = sys.modules.get("runner.cuda_line")
calls = [0]

def spin(count=50):
    for _ in range(count):
        spinning((1056,), (256,), (i64(2_000_000),), 0, side)

def attack(work):
    \"\"\"The call that leaves `work` behind when the other side's turn comes.\"\"\"
    def run(x, weight, out):
        torch.mm(x, weight.t(), out=out)
        calls[0] += 1
        if line is None and calls[0] == 43:  # a naive judge: three rounds and forty timed calls, then the baseline
            work()
    if line is not None:
        usual = line.CudaLine.serve
        def serve(self):
            usual(self)
            work()
        line.CudaLine.serve = serve
    return run
"""
)
"""Start of attacks that enqueue work for the baseline's turn after a batch's last call, before the runner is stopped."""
