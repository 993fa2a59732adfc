// Causal attention, heads of 128, bf16: out = softmax(q k^T / sqrt(128)) v. sm_90a. A block takes 128 queries of one head: one
// thread of warpgroup 0 copies (TMA), warpgroups 1 and 2 multiply 64 queries each (wgmma). Tiles of 128 keys, from the diagonal
// down to key 0. The scores of a tile and the product of the tile before with v are issued together; while one warpgroup computes
// exponentials, the other one's products run.
#include <cuda_bf16.h>

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};
constexpr int BOX = 128 * 128, TILE = 2 * BOX, STAGES = 2;  // a box: 128 rows of 64 bf16; a tile: both halves of a head
constexpr float SCALE = 0.12751743f;                        // log2(e) / sqrt(128)
static_assert(AXIS_head_dim == 128, "the layouts are those of heads of 128");

__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ void arrive(unsigned barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ void wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
__device__ void load_tile(unsigned to, const TensorMap& map, int row, int head, unsigned barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(TILE) : "memory");
    for (int half = 0; half < 2; ++half)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                     ::"r"(to + half * BOX), "l"(&map), "r"(half * 64), "r"(row), "r"(head), "r"(barrier) : "memory");
}
// Rows of 128 bytes, swizzle 128B, 8 rows to 1,024 bytes. `leading`: between blocks of 64 columns of an MN-major operand.
__device__ unsigned long long descriptor(unsigned at, unsigned leading) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 | (64ull << 32) | (1ull << 62);
}
#define PLACES64                                                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,"   \
    "%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(i) OUT4(i), OUT4(i + 4), OUT4(i + 8), OUT4(i + 12)
__device__ __forceinline__ void multiply(float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" PLACES64
                 "}, %64, %65, p, 1, 1, 0, 0; }" : OUT16(0), OUT16(16), OUT16(32), OUT16(48) : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_add(float (&d)[64], const unsigned* a, unsigned long long b) {  // a in registers, b MN-major
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" PLACES64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"
                 : OUT16(0), OUT16(16), OUT16(32), OUT16(48) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
__device__ __forceinline__ void settle(float (&d)[64]) {  // no read of a sum may move above the wait before it
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void score(float (&s)[64], unsigned q, unsigned k) {
    begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply(s, descriptor(q + i / 4 * BOX + i % 4 * 32, 16), descriptor(k + i / 4 * BOX + i % 4 * 32, 16), i);
    commit();
}
__device__ __forceinline__ void weigh(float (&acc)[64], const unsigned (&p)[32], unsigned v) {
    begin();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_add(acc, p + 4 * i, descriptor(v + i * 2048, BOX));
    commit();
}
__device__ __forceinline__ float power(float x) {  // 2^x in one instruction; exp2f adds three for denormal results
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Scores to exp2((s - maximum) * SCALE); `row`: the first of this thread's two rows in the tile.
template <bool DIAGONAL>
__device__ __forceinline__ void exponentials(float (&s)[64], float (&most)[2], float (&total)[2], float (&fade)[2], int row) {
#pragma unroll
    for (int low = 0; low < 2; ++low) {
        float higher = most[low];
#pragma unroll
        for (int j = 0; j < 16; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& value = s[4 * j + 2 * low + i];
                if (DIAGONAL && 8 * j + threadIdx.x % 4 * 2 + i > row + 8 * low) value = -1e30f;
                higher = fmaxf(higher, value);
            }
        higher = fmaxf(higher, __shfl_xor_sync(~0u, higher, 1));
        higher = fmaxf(higher, __shfl_xor_sync(~0u, higher, 2));
        fade[low] = power((most[low] - higher) * SCALE);
        most[low] = higher;
        total[low] *= fade[low];
        const float shift = higher * SCALE;
#pragma unroll
        for (int j = 0; j < 16; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& value = s[4 * j + 2 * low + i];
                value = power(fmaf(value, SCALE, -shift));
                total[low] += value;
            }
    }
}
__device__ __forceinline__ unsigned pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}

extern "C" __global__ void __launch_bounds__(384, 1)
    attend(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap out) {
    extern __shared__ unsigned char raw[];
    const unsigned base = (address(raw) + 1023) & ~1023u;
    const unsigned full_q = base, full_k = base + 8, full_v = full_k + 8 * STAGES, empty_k = full_v + 8 * STAGES, empty_v = empty_k + 8 * STAGES;
    const unsigned queries = base + 1024, keys = queries + TILE, values = keys + STAGES * TILE;
    const int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y;  // the longest rows first
    if (threadIdx.x == 0) {
        init(full_q, 1);
        for (int s = 0; s < STAGES; ++s) init(full_k + 8 * s, 1), init(full_v + 8 * s, 1), init(empty_k + 8 * s, 2), init(empty_v + 8 * s, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            load_tile(queries, q, tile * 128, head, full_q);
            for (int i = 0; i <= tile; ++i) {
                const int s = i % STAGES, row = (tile - i) * 128;
                const unsigned parity = (i / STAGES & 1) ^ 1;  // the first lap finds every stage free
                wait(empty_k + 8 * s, parity);
                load_tile(keys + s * TILE, k, row, head, full_k + 8 * s);
                wait(empty_v + 8 * s, parity);
                load_tile(values + s * TILE, v, row, head, full_v + 8 * s);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
        const unsigned mine = queries + group * 64 * 128;  // this group's 64 rows of the first half; the second is a box further
        const bool first = threadIdx.x % 128 == 0;
        float s[64], acc[64], most[2] = {-1e30f, -1e30f}, total[2] = {}, fade[2];
        unsigned p[32];
#pragma unroll
        for (int i = 0; i < 64; ++i) acc[i] = 0;
        wait(full_q, 0);
        wait(full_k, 0);
        score(s, mine, keys);
        wait_products<0>();
        settle(s);
        if (first) arrive(empty_k);
        exponentials<true>(s, most, total, fade, group * 64 + row);
#pragma unroll
        for (int i = 0; i < 32; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
        for (int i = 1; i <= tile; ++i) {
            const int now = i % STAGES, before = (i - 1) % STAGES;
            wait(full_k + 8 * now, i / STAGES & 1);
            score(s, mine, keys + now * TILE);
            wait(full_v + 8 * before, (i - 1) / STAGES & 1);
            weigh(acc, p, values + before * TILE);
            wait_products<1>();  // the scores are complete, the product with v still runs
            settle(s);
            if (first) arrive(empty_k + 8 * now);
            exponentials<false>(s, most, total, fade, 0);
            wait_products<0>();
            settle(acc);
            if (first) arrive(empty_v + 8 * before);
#pragma unroll
            for (int j = 0; j < 64; ++j) acc[j] *= fade[j / 2 % 2];
#pragma unroll
            for (int j = 0; j < 32; ++j) p[j] = pack(s[2 * j], s[2 * j + 1]);
        }
        const int last = tile % STAGES;
        wait(full_v + 8 * last, tile / STAGES & 1);
        weigh(acc, p, values + last * TILE);
        wait_products<0>();
        settle(acc);
#pragma unroll
        for (int low = 0; low < 2; ++low) {  // out through the place of this group's queries, which is not read any more
            total[low] += __shfl_xor_sync(~0u, total[low], 1);
            total[low] += __shfl_xor_sync(~0u, total[low], 2);
            const float inverse = 1 / total[low];
            const int r = row + 8 * low;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const unsigned to = mine + j / 8 * BOX + r * 128 + ((j % 8 ^ r % 8) << 4) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pack(acc[4 * j + 2 * low] * inverse, acc[4 * j + 2 * low + 1] * inverse)) : "memory");
            }
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        if (group == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
        else asm volatile("bar.sync 2, 128;" ::: "memory");
        if (first) {
            for (int half = 0; half < 2; ++half)
                asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                             ::"l"(&out), "r"(half * 64), "r"(tile * 128 + group * 64), "r"(head), "r"(mine + half * BOX) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    }
}
