// y[m, n] = x[m, k] * w[n, k]^T in bf16, sums in float32. sm_90a: persistent blocks take tiles of 128 x 256; one thread of
// warpgroup 0 copies (TMA), warpgroups 1 and 2 multiply 64 rows each (wgmma). The copies for the next tile run while a tile is
// written. For large m; few tokens need another division of the work (pages GEMM and split-K).
//
// STAGES  of the ring, 48 KB each
// TALL    tiles down before the next column, so that blocks that run together share operands in L2
// BLOCKS  the SMs of the device
#include <cuda_bf16.h>

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};
constexpr int X_BYTES = 128 * 128, STAGE_BYTES = X_BYTES + 256 * 128, BOX_BYTES = 64 * 128, STEPS = AXIS_k / 64, ACROSS = AXIS_n / 256;
static_assert(AXIS_k % 64 == 0 && AXIS_n % 256 == 0, "whole tiles, except for the last rows");

__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ void arrive(unsigned barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ void expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
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
struct Ring {  // where a role stands in the ring; the producer starts one lap behind, when every stage is free
    int stage;
    unsigned parity;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
struct Tile {
    int row, column;
};
__device__ Tile tile_at(int number, int down) {
    const int first = number / (TALL * ACROSS) * TALL, height = min(down - first, TALL), rest = number % (TALL * ACROSS);
    return {first + rest % height, rest / height};
}

// K-major rows of 128 bytes, swizzle 128B: leading offset unused (1), 1,024 bytes between groups of 8 rows (64 * 16).
__device__ unsigned long long descriptor(unsigned at) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
#define PLACES128                                                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,"   \
    "%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94," \
    "%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,"     \
    "%120,%121,%122,%123,%124,%125,%126,%127"
#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(i) OUT4(i), OUT4(i + 4), OUT4(i + 8), OUT4(i + 12)
#define OUT64(i) OUT16(i), OUT16(i + 16), OUT16(i + 32), OUT16(i + 48)
__device__ __forceinline__ void multiply(float (&d)[128], unsigned long long a, unsigned long long b, int add) {  // 64 x 256 x 16
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" PLACES128
                 "}, %128, %129, p, 1, 1, 0, 0; }" : OUT64(0), OUT64(64) : "l"(a), "l"(b), "r"(add));
}
template <int PENDING>
__device__ __forceinline__ void wait_products(float (&sum)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    if (PENDING == 0)
#pragma unroll
        for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // no read of a sum may move above the wait
}
__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1)
    gemm(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap y, int m) {
    extern __shared__ unsigned char raw[];
    const unsigned base = (address(raw) + 1023) & ~1023u, full = base, empty = base + 8 * STAGES;
    const unsigned stages = base + 1024, staging = stages + STAGES * STAGE_BYTES;
    const int down = (m + 127) / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) init(full + 8 * s, 1), init(empty + 8 * s, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            Ring ring = {0, 1};
            for (int number = blockIdx.x; number < down * ACROSS; number += gridDim.x) {
                const Tile tile = tile_at(number, down);
                for (int step = 0; step < STEPS; ++step, ring.advance()) {
                    const unsigned at = stages + ring.stage * STAGE_BYTES, barrier = full + 8 * ring.stage;
                    wait(empty + 8 * ring.stage, ring.parity);
                    expect(barrier, STAGE_BYTES);
                    copy_in(at, x, step * 64, tile.row * 128, barrier);
                    copy_in(at + X_BYTES, w, step * 64, tile.column * 256, barrier);
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
        const bool first = threadIdx.x % 128 == 0;
        const unsigned mine = staging + group * 2 * BOX_BYTES;  // 64 rows of 128 columns, half of the group's result
        Ring ring = {0, 0};
        for (int number = blockIdx.x; number < down * ACROSS; number += gridDim.x) {
            const Tile tile = tile_at(number, down);
            float sum[128];
            int before = 0;
            for (int step = 0; step < STEPS; ++step) {
                wait(full + 8 * ring.stage, ring.parity);
                const unsigned a = stages + ring.stage * STAGE_BYTES + group * BOX_BYTES, b = stages + ring.stage * STAGE_BYTES + X_BYTES;
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int k = 0; k < 4; ++k) multiply(sum, descriptor(a + 32 * k), descriptor(b + 32 * k), step || k);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                wait_products<1>(sum);
                if (first && step) arrive(empty + 8 * before);  // the product of the step before is complete
                before = ring.stage;
                ring.advance();
            }
            wait_products<0>(sum);
            if (first) arrive(empty + 8 * before);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (first) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the stores before have read the staging
                group_sync(group);
#pragma unroll
                for (int j = 0; j < 16; ++j)
#pragma unroll
                    for (int low = 0; low < 2; ++low) {  // this row, and the one eight further down
                        const int i = (half * 16 + j) * 4 + low * 2, r = row + 8 * low;
                        const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[i], sum[i + 1]);
                        const unsigned to = mine + j / 8 * BOX_BYTES + r * 128 + ((j % 8 ^ r % 8) << 4) + lane % 4 * 4;
                        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(*reinterpret_cast<const unsigned*>(&pair)) : "memory");
                    }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                group_sync(group);
                if (first) {
                    for (int box = 0; box < 2; ++box)
                        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                                     ::"l"(&y), "r"(tile.column * 256 + half * 128 + box * 64), "r"(tile.row * 128 + group * 64),
                                     "r"(mine + box * BOX_BYTES) : "memory");
                    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                }
            }
        }
        if (first) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
