// Two launches: squares are summed into a workspace by many blocks a row, then every element is scaled.
#include <cuda_bf16.h>

extern "C" __global__ void square_sums(const __nv_bfloat162* x, float* sums) {
    const int pairs = AXIS_hidden / 2 / gridDim.y;
    const __nv_bfloat162* part = x + (size_t)blockIdx.x * (AXIS_hidden / 2) + blockIdx.y * pairs;
    float sum = 0;
    for (int i = threadIdx.x; i < pairs; i += BLOCK) {
        float2 f = __bfloat1622float2(part[i]);
        sum += f.x * f.x + f.y * f.y;
    }
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(&sums[blockIdx.x], sum);
}

extern "C" __global__ void scale(const __nv_bfloat162* x, const __nv_bfloat162* weight, const float* sums, __nv_bfloat162* y, long long pairs) {
    long long i = blockIdx.x * (long long)BLOCK + threadIdx.x;
    if (i >= pairs) return;
    const float factor = rsqrtf(sums[i / (AXIS_hidden / 2)] / AXIS_hidden + 1e-5f);
    float2 f = __bfloat1622float2(x[i]), g = __bfloat1622float2(weight[i % (AXIS_hidden / 2)]);
    y[i] = __floats2bfloat162_rn(f.x * factor * g.x, f.y * factor * g.y);
}
