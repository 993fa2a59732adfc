// silu(gate) * up over 16-byte vectors of bf16, arithmetic in float.
//
// BLOCK    threads a block
// VECTORS  vectors a thread, all loaded before the first is used
#include <cuda_bf16.h>

// Eight bf16, loaded and stored as one uint4: NVRTC 13.5 splits the copy of a struct of pairs into 4-byte accesses.
struct Eight {
    uint4 bits;
    __device__ float2 operator[](int i) const {
        const unsigned word = (&bits.x)[i];
        return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
    }
    __device__ void set(int i, float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        (&bits.x)[i] = *reinterpret_cast<const unsigned*>(&pair);
    }
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
            const float2 g = gates[v][i], u = ups[v][i];
            result.set(i, silu(g.x) * u.x, silu(g.y) * u.y);
        }
        output[first + v * BLOCK] = result;
    }
}
