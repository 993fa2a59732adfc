// Eight rows a block, all 64 KB of them in dynamic shared memory between the two passes.
#include <cuda_bf16.h>

extern __shared__ __align__(16) unsigned char staged[];

extern "C" __global__ void rmsnorm_rows(const uint4* x, const __nv_bfloat162* weight, __nv_bfloat162* y, int rows) {
    constexpr int row_vectors = AXIS_hidden / 8, row_pairs = AXIS_hidden / 2;
    uint4* held = reinterpret_cast<uint4*>(staged);
    const int first = blockIdx.x * ROWS, here = min(ROWS, rows - first);
    for (int i = threadIdx.x; i < here * row_vectors; i += blockDim.x) held[i] = x[(size_t)first * row_vectors + i];
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int r = warp; r < here; r += blockDim.x / 32) {
        const __nv_bfloat162* row = reinterpret_cast<const __nv_bfloat162*>(staged) + r * row_pairs;
        float sum = 0;
        for (int i = lane; i < row_pairs; i += 32) {
            float2 f = __bfloat1622float2(row[i]);
            sum += f.x * f.x + f.y * f.y;
        }
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        const float factor = rsqrtf(sum / AXIS_hidden + 1e-5f);
        for (int i = lane; i < row_pairs; i += 32) {
            float2 f = __bfloat1622float2(row[i]), g = __bfloat1622float2(weight[i]);
            y[(size_t)(first + r) * row_pairs + i] = __floats2bfloat162_rn(f.x * factor * g.x, f.y * factor * g.y);
        }
    }
}
