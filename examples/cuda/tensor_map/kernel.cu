// A row comes in by bulk tensor copies (TMA) that one thread issues; an mbarrier says when it is there.
#include <cuda_bf16.h>

struct alignas(64) CUtensorMap {  // cuda.h has it too, but needs the host's headers
    unsigned long long opaque[16];
};

extern "C" __global__ void __launch_bounds__(256) rmsnorm_tma(const __grid_constant__ CUtensorMap map, const __nv_bfloat162* weight, __nv_bfloat162* y) {
    __shared__ __align__(128) __nv_bfloat162 row[AXIS_hidden / 2];
    __shared__ __align__(8) unsigned long long barrier;
    __shared__ float partial[8];
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(AXIS_hidden * 2) : "memory");
        for (int tile = 0; tile < AXIS_hidden / TILE; ++tile) {
            const unsigned to = (unsigned)__cvta_generic_to_shared(row) + tile * TILE * 2;
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                ::"r"(to), "l"(&map), "r"(tile * TILE), "r"((int)blockIdx.x), "r"(bar) : "memory");
        }
    }
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
    float sum = 0;
    for (int i = threadIdx.x; i < AXIS_hidden / 2; i += 256) {
        float2 f = __bfloat1622float2(row[i]);
        sum += f.x * f.x + f.y * f.y;
    }
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < 8; ++w) sum += partial[w];
    const float factor = rsqrtf(sum / AXIS_hidden + 1e-5f);
    for (int i = threadIdx.x; i < AXIS_hidden / 2; i += 256) {
        float2 f = __bfloat1622float2(row[i]), g = __bfloat1622float2(weight[i]);
        y[(size_t)blockIdx.x * (AXIS_hidden / 2) + i] = __floats2bfloat162_rn(f.x * factor * g.x, f.y * factor * g.y);
    }
}
