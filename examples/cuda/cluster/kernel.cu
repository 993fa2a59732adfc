// A row is shared by a cluster of blocks, which add up their sums through distributed shared memory.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
namespace cg = cooperative_groups;

extern "C" __global__ void rmsnorm_cluster(const __nv_bfloat162* x, const __nv_bfloat162* weight, __nv_bfloat162* y) {
    cg::cluster_group cluster = cg::this_cluster();
    constexpr int part = AXIS_hidden / 2 / CLUSTER;
    const int begin = cluster.block_rank() * part;
    const __nv_bfloat162* row = x + (size_t)(blockIdx.x / CLUSTER) * (AXIS_hidden / 2);
    __shared__ float mine;
    if (threadIdx.x == 0) mine = 0;
    __syncthreads();
    float sum = 0;
    for (int i = threadIdx.x; i < part; i += blockDim.x) {
        float2 f = __bfloat1622float2(row[begin + i]);
        sum += f.x * f.x + f.y * f.y;
    }
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(&mine, sum);
    cluster.sync();
    float total = 0;
    for (int rank = 0; rank < CLUSTER; ++rank) total += *cluster.map_shared_rank(&mine, rank);
    const float factor = rsqrtf(total / AXIS_hidden + 1e-5f);
    __nv_bfloat162* out = y + (size_t)(blockIdx.x / CLUSTER) * (AXIS_hidden / 2);
    for (int i = threadIdx.x; i < part; i += blockDim.x) {
        float2 f = __bfloat1622float2(row[begin + i]), g = __bfloat1622float2(weight[begin + i]);
        out[begin + i] = __floats2bfloat162_rn(f.x * factor * g.x, f.y * factor * g.y);
    }
    cluster.sync();  // no block may end while another still reads its sum
}
