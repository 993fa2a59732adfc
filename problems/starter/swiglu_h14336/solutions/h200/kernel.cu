// silu(gate) * up over 16-byte vectors of bf16, arithmetic in float.
//
// BLOCK    threads a block
// VECTORS  vectors a thread, all loaded before the first is used
#include <cuda_bf16.h>

struct alignas(16) Eight {
    __nv_bfloat162 pair[4];
};

__device__ float silu(float x) { return x / (1.0f + __expf(-x)); }

extern "C" __global__ void __launch_bounds__(BLOCK) swiglu(const Eight* __restrict__ gate, const Eight* __restrict__ up, Eight* __restrict__ output, int count) {
    const int first = blockIdx.x * (BLOCK * VECTORS) + threadIdx.x;
    Eight gates[VECTORS], ups[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (first + v * BLOCK < count) {
            gates[v] = gate[first + v * BLOCK];
            ups[v] = up[first + v * BLOCK];
        }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        if (first + v * BLOCK >= count) return;
        Eight result;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 g = __bfloat1622float2(gates[v].pair[i]), u = __bfloat1622float2(ups[v].pair[i]);
            result.pair[i] = __floats2bfloat162_rn(silu(g.x) * u.x, silu(g.y) * u.y);
        }
        output[first + v * BLOCK] = result;
    }
}
