// RMS normalisation of bf16 rows: one block a row, 16-byte loads, one pass over memory, arithmetic in float.
//
// BLOCK  threads a row
#include <cuda_bf16.h>

constexpr int VECTORS = AXIS_hidden / 8 / BLOCK, WARPS = BLOCK / 32;
static_assert(VECTORS * 8 * BLOCK == AXIS_hidden, "a row is a whole number of vectors a thread");

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

extern "C" __global__ void __launch_bounds__(BLOCK) rmsnorm(const Eight* __restrict__ x, const Eight* __restrict__ weight, Eight* __restrict__ y) {
    const size_t row = (size_t)blockIdx.x * (AXIS_hidden / 8);
    Eight held[VECTORS], scale[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) held[v] = x[row + v * BLOCK + threadIdx.x];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) scale[v] = weight[v * BLOCK + threadIdx.x];  // its latency hides behind the sum's
    float sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = held[v][i];
            sum = fmaf(f.x, f.x, fmaf(f.y, f.y, sum));
        }
#pragma unroll
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    __shared__ float partial[WARPS];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += partial[w];
    const float rstd = rsqrtf(sum / AXIS_hidden + 1e-5f);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        Eight result;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = held[v][i], g = scale[v][i];
            result.set(i, f.x * rstd * g.x, f.y * rstd * g.y);
        }
        y[row + v * BLOCK + threadIdx.x] = result;
    }
}
