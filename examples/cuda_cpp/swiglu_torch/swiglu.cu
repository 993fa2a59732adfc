// silu(gate) * up over 16-byte vectors of bf16, arithmetic in float. Without torch's headers: nvcc takes seconds then.
//
// BLOCK    threads a block (a param)
#include "swiglu.h"

#include <cuda_bf16.h>

struct alignas(16) Eight {
    __nv_bfloat162 pair[4];
};

__global__ void __launch_bounds__(BLOCK) kernel(const Eight* __restrict__ gate, const Eight* __restrict__ up, Eight* __restrict__ output, int64_t count) {
    const int64_t at = blockIdx.x * int64_t(BLOCK) + threadIdx.x;
    if (at >= count) return;
    const Eight g = gate[at], u = up[at];
    Eight result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 x = __bfloat1622float2(g.pair[i]), y = __bfloat1622float2(u.pair[i]);
        result.pair[i] = __floats2bfloat162_rn(x.x / (1.0f + __expf(-x.x)) * y.x, x.y / (1.0f + __expf(-x.y)) * y.y);
    }
    output[at] = result;
}

void swiglu(const void* gate, const void* up, void* output, int64_t count, cudaStream_t stream) {
    if (count == 0) return;
    kernel<<<(count + BLOCK - 1) / BLOCK, BLOCK, 0, stream>>>(static_cast<const Eight*>(gate), static_cast<const Eight*>(up), static_cast<Eight*>(output), count);
}
