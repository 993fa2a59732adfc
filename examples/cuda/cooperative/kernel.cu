// One launch, two phases, and a barrier across the grid between them.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
namespace cg = cooperative_groups;

extern "C" __global__ void rmsnorm_grid(const __nv_bfloat162* x, const __nv_bfloat162* weight, __nv_bfloat162* y, float* sums, int rows) {
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    const int warps = gridDim.x * blockDim.x / 32;
    constexpr int pairs = AXIS_hidden / 2;
    for (int part = warp; part < rows * SPLIT; part += warps) {
        const __nv_bfloat162* from = x + (size_t)part * (pairs / SPLIT);
        float sum = 0;
        for (int i = lane; i < pairs / SPLIT; i += 32) {
            float2 f = __bfloat1622float2(from[i]);
            sum += f.x * f.x + f.y * f.y;
        }
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0) sums[part] = sum;
    }
    cg::this_grid().sync();
    for (int part = warp; part < rows * SPLIT; part += warps) {
        float total = 0;
        for (int s = 0; s < SPLIT; ++s) total += sums[part / SPLIT * SPLIT + s];
        const float factor = rsqrtf(total / AXIS_hidden + 1e-5f);
        const size_t at = (size_t)part * (pairs / SPLIT);
        for (int i = lane; i < pairs / SPLIT; i += 32) {
            float2 f = __bfloat1622float2(x[at + i]), g = __bfloat1622float2(weight[(part % SPLIT) * (pairs / SPLIT) + i]);
            y[at + i] = __floats2bfloat162_rn(f.x * factor * g.x, f.y * factor * g.y);
        }
    }
}
