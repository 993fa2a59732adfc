// y[m, n] = x[m, k] * w[n, k]^T in bf16, sums in float32. sm_90a: one tile of 128 x 128 a block; one thread copies (TMA), two
// warpgroups multiply (wgmma). A start that is right: persistence, clusters and an epilogue by TMA come next.
#include <cuda_bf16.h>

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};
constexpr int TILE_BYTES = 128 * 128;  // 128 rows of 64 bf16: one swizzle of 128 bytes wide

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
// K-major rows of 128 bytes, swizzle 128B: leading offset unused (1), stride between groups of 8 rows 1,024 bytes (64 * 16).
__device__ unsigned long long descriptor(unsigned at) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(i) OUT4(i), OUT4(i + 4), OUT4(i + 8), OUT4(i + 12)
// 64 rows of a times 128 rows of b, 16 deep, into 64 float32 a thread.
__device__ void multiply(float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 " %64, %65, p, 1, 1, 0, 0; }"
                 : OUT16(0), OUT16(16), OUT16(32), OUT16(48) : "l"(a), "l"(b), "r"(add));
}

extern "C" __global__ void __launch_bounds__(384) gemm(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, __nv_bfloat16* y, int m) {
    extern __shared__ unsigned char raw[];
    const unsigned base = (address(raw) + 1023) & ~1023u;  // swizzled tiles want 1,024 bytes
    const unsigned full = base, empty = base + 8 * STAGES, tiles = base + 1024;
    const int row = blockIdx.y * 128, column = blockIdx.x * 128, steps = AXIS_k / 64;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * s) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(empty + 8 * s) : "memory");  // both warpgroups
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {  // the producer: one thread of the last warpgroup
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256)
            for (int step = 0; step < steps; ++step) {
                const int s = step % STAGES;
                wait(empty + 8 * s, (step / STAGES & 1) ^ 1);  // the first lap finds every stage free
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + 8 * s), "r"(2 * TILE_BYTES) : "memory");
                copy_in(tiles + s * 2 * TILE_BYTES, x, step * 64, row, full + 8 * s);
                copy_in(tiles + s * 2 * TILE_BYTES + TILE_BYTES, w, step * 64, column, full + 8 * s);
            }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float sum[64];
    const int group = threadIdx.x / 128;
    for (int step = 0; step < steps; ++step) {
        const int s = step % STAGES;
        wait(full + 8 * s, step / STAGES & 1);
        const unsigned a = tiles + s * 2 * TILE_BYTES + group * 64 * 128, b = tiles + s * 2 * TILE_BYTES + TILE_BYTES;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; ++k) multiply(sum, descriptor(a + 32 * k), descriptor(b + 32 * k), step || k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (threadIdx.x % 128 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + 8 * s) : "memory");
    }
    // Thread t of a warpgroup holds rows t / 32 * 16 + t % 32 / 4 (+ 8), columns 8 * j + t % 4 * 2 (+ 1).
    const int lane = threadIdx.x % 32, r = row + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    for (int j = 0; j < 16; ++j)
        for (int low = 0; low < 2; ++low)
            if (r + 8 * low < m)
                *(__nv_bfloat162*)(y + (size_t)(r + 8 * low) * AXIS_n + column + j * 8 + lane % 4 * 2) =
                    __floats2bfloat162_rn(sum[j * 4 + low * 2], sum[j * 4 + low * 2 + 1]);
}
