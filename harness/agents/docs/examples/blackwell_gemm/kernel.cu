// y[m, n] = x[m, k] * w[n, k]^T in bf16, sums in float32. sm_100a: one tile of 128 x 128 a block. Warp 0 copies (TMA), warp 1's
// one thread multiplies (tcgen05.mma) into tensor memory, all four warps read it out (tcgen05.ld).
#include <cuda_bf16.h>

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};
constexpr int TILE_BYTES = 128 * 128;

__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
__device__ void copy_in(unsigned to, const TensorMap& map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// Not Hopper's descriptor: bits 46 to 48 hold 1 and the swizzle has three bits (61 to 63), where 2 is 128 bytes.
__device__ unsigned long long descriptor(unsigned at) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 46) | (2ull << 61);
}
// kind::f16: sums float32 (bit 4), a and b bf16 (bits 7 and 10), N / 8 from bit 17, M / 16 from bit 24.
constexpr unsigned INSTRUCTION = 1u << 4 | 1u << 7 | 1u << 10 | (128 / 8) << 17 | (128 / 16) << 24;

__device__ void multiply(unsigned to, unsigned long long a, unsigned long long b, unsigned add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
                 ::"r"(to), "l"(a), "l"(b), "r"(INSTRUCTION), "r"(add) : "memory");
}
__device__ void when_multiplied(unsigned barrier) {  // arrives when every product issued before by this thread is done
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier) : "memory");
}

extern "C" __global__ void __launch_bounds__(128) gemm(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, __nv_bfloat16* y, int m) {
    extern __shared__ unsigned char raw[];
    const unsigned base = (address(raw) + 1023) & ~1023u;
    const unsigned full = base, empty = base + 8 * STAGES, finished = base + 16 * STAGES, slot = finished + 8, tiles = base + 1024;
    const int row = blockIdx.y * 128, column = blockIdx.x * 128, steps = AXIS_k / 64, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * s) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(empty + 8 * s) : "memory");
        }
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(finished) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (warp == 0) {  // a whole warp: 128 columns of tensor memory, each 128 lanes of 32 bits
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 128;" ::"r"(slot) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    unsigned sums;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(sums) : "r"(slot));
    if (threadIdx.x == 0) {
        for (int step = 0; step < steps; ++step) {
            const int s = step % STAGES;
            wait(empty + 8 * s, (step / STAGES & 1) ^ 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + 8 * s), "r"(2 * TILE_BYTES) : "memory");
            copy_in(tiles + s * 2 * TILE_BYTES, x, step * 64, row, full + 8 * s);
            copy_in(tiles + s * 2 * TILE_BYTES + TILE_BYTES, w, step * 64, column, full + 8 * s);
        }
    } else if (threadIdx.x == 32) {
        for (int step = 0; step < steps; ++step) {
            const int s = step % STAGES;
            wait(full + 8 * s, step / STAGES & 1);
            asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
            const unsigned a = tiles + s * 2 * TILE_BYTES, b = a + TILE_BYTES;
            for (int k = 0; k < 4; ++k) multiply(sums, descriptor(a + 32 * k), descriptor(b + 32 * k), step || k);
            when_multiplied(empty + 8 * s);
        }
        when_multiplied(finished);
    }
    __syncwarp();
    wait(finished, 0);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const int r = row + threadIdx.x;  // warp w reads lanes 32 * w to 32 * w + 31: one row a thread
    for (int j = 0; j < 128; j += 8) {
        unsigned v[8];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
                     : "r"(sums + (warp * 32 << 16) + j));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        if (r < m)
            for (int i = 0; i < 8; i += 2)
                *(__nv_bfloat162*)(y + (size_t)r * AXIS_n + column + j + i) = __floats2bfloat162_rn(__uint_as_float(v[i]), __uint_as_float(v[i + 1]));
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 128;" ::"r"(sums));
}
