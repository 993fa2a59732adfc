// RMSNorm of rows of AXIS_hidden bf16: one block a row, one pass over memory, 16-byte loads, sums in float32.
#include <cuda_bf16.h>

struct alignas(16) Eight {
    __nv_bfloat162 pair[4];
};
constexpr int EACH = AXIS_hidden / 8 / THREADS;
static_assert(EACH * 8 * THREADS == AXIS_hidden, "a row is a whole number of 16-byte pieces for each thread");

extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm(const Eight* __restrict__ x, const Eight* __restrict__ weight, Eight* __restrict__ y) {
    __shared__ float partial[THREADS / 32];
    x += (size_t)blockIdx.x * (AXIS_hidden / 8), y += (size_t)blockIdx.x * (AXIS_hidden / 8);
    Eight mine[EACH];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        mine[i] = x[threadIdx.x + i * THREADS];
        for (const __nv_bfloat162& pair : mine[i].pair) {
            const float2 f = __bfloat1622float2(pair);
            sum += f.x * f.x + f.y * f.y;
        }
    }
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) sum += partial[w];
    const float factor = rsqrtf(sum / AXIS_hidden + 1e-5f);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const Eight scale = weight[threadIdx.x + i * THREADS];
        Eight result;
        for (int k = 0; k < 4; ++k) {
            const float2 f = __bfloat1622float2(mine[i].pair[k]), g = __bfloat1622float2(scale.pair[k]);
            result.pair[k] = __floats2bfloat162_rn(f.x * factor * g.x, f.y * factor * g.y);
        }
        y[threadIdx.x + i * THREADS] = result;
    }
}
