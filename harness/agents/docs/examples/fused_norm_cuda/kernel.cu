// RMSNorm of rows of AXIS_hidden bf16: one block a row, one pass over memory, sums in float32. All loads of a row are under way
// before the first sum. Loads are uint4: a struct of four __nv_bfloat162 would be loaded in pieces of 4 bytes.
#include <cuda_bf16.h>

constexpr int EACH = AXIS_hidden / 8 / THREADS;
static_assert(EACH * 8 * THREADS == AXIS_hidden, "a row is a whole number of 16-byte pieces for each thread");

__device__ void unpack(uint4 v, float (&f)[8]) {  // a bf16 is the upper half of a float
    const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) f[2 * i] = __uint_as_float(word[i] << 16), f[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
}
__device__ unsigned pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}

extern "C" __global__ void __launch_bounds__(THREADS) rmsnorm(const uint4* __restrict__ x, const uint4* __restrict__ weight, uint4* __restrict__ y) {
    __shared__ float partial[THREADS / 32];
    const size_t row = (size_t)blockIdx.x * (AXIS_hidden / 8) + threadIdx.x;
    uint4 mine[EACH], scale[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) mine[i] = __ldcs(x + row + i * THREADS);
#pragma unroll
    for (int i = 0; i < EACH; ++i) scale[i] = weight[threadIdx.x + i * THREADS];
    float sum = 0, f[8], g[8];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        unpack(mine[i], f);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum = fmaf(f[k], f[k], sum);
    }
#pragma unroll
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) sum += partial[w];
    const float factor = rsqrtf(sum / AXIS_hidden + 1e-5f);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        unpack(mine[i], f);
        unpack(scale[i], g);
#pragma unroll
        for (int k = 0; k < 8; ++k) f[k] *= factor * g[k];
        __stcs(y + row + i * THREADS, make_uint4(pack(f[0], f[1]), pack(f[2], f[3]), pack(f[4], f[5]), pack(f[6], f[7])));
    }
}
