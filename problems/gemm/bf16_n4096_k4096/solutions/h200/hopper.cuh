// Matrix products of bf16 with Hopper's own means: bulk tensor copies into swizzled shared memory, mbarriers, and warpgroup
// products (wgmma) with accumulators in registers.
//
// Only sm_90a has wgmma. Elsewhere (sm_100a, or with -DMMA_SYNC) warps make the same products with mma.sync, whose fragments
// have the same layout, so that everything around them stays. tcgen05 would be faster on sm_100a: it keeps sums in tensor
// memory, which needs another epilogue, and cannot be tried without a B200.
//
// Both operands are row-major with the contracted dimension last. Two bodies:
//   large_tiles  persistent blocks, 128 x BN tiles, one producer warpgroup and two consumers; out by tensor copy
//   few_tokens   the weight's rows are the tile's 128 rows and the tokens its columns, so that a handful of tokens wastes
//                little; the contracted dimension is split over a cluster, which adds up through distributed shared memory
// `Finish` turns accumulators into a result: of one, or of a gate and an up value whose rows lie `up` rows apart.
#pragma once
#include <cuda_bf16.h>

constexpr int STEP = 64;                 // of the contracted dimension a stage: 128 bytes, the swizzle's width
constexpr int LARGE_THREADS = 384, FEW_THREADS = 288;
constexpr int BOX_BYTES = 64 * 128;      // 64 rows of 64 bf16

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

struct Plain {
    static constexpr bool gated = false;
    __device__ float operator()(float value) const { return value; }
};

__device__ inline unsigned packed(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ inline unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// --- barriers and copies ---------------------------------------------------------------------------------------------

__device__ inline void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
__device__ inline void copy_in(unsigned to, const TensorMap& map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
__device__ inline void copy_out(const TensorMap& map, int column, int row, unsigned from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(column), "r"(row), "r"(from) : "memory");
}
__device__ inline void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// Where a role stands in the ring of stages. The producer starts one lap behind, when every stage is free.
template <int DEPTH>
struct Ring {
    int stage;
    unsigned parity;
    __device__ void advance() {
        if (++stage == DEPTH) stage = 0, parity ^= 1;
    }
};

// --- products --------------------------------------------------------------------------------------------------------

#define OPERANDS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(MMA_SYNC)

// A tile of rows of 128 bytes, swizzled by 128 bytes, 8 rows to a 1,024-byte group. Source: PTX ISA, wgmma descriptors.
__device__ inline unsigned long long descriptor(unsigned at) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define PLACES8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PLACES32 PLACES8 \
    ",%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PLACES64 PLACES32 \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PLACES128 PLACES64 \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define OPERANDS8(i) OPERANDS4(i), OPERANDS4(i + 4)
#define OPERANDS32(i) OPERANDS8(i), OPERANDS8(i + 8), OPERANDS8(i + 16), OPERANDS8(i + 24)
#define OPERANDS64(i) OPERANDS32(i), OPERANDS32(i + 32)
#define OPERANDS128(i) OPERANDS64(i), OPERANDS64(i + 64)

__device__ inline void product(float (&d)[8], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" PLACES8 "}, %8, %9, p, 1, 1, 0, 0; }"
                 : OPERANDS8(0) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void product(float (&d)[32], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" PLACES32 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : OPERANDS32(0) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void product(float (&d)[64], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" PLACES64 "}, %64, %65, p, 1, 1, 0, 0; }"
                 : OPERANDS64(0) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void product(float (&d)[128], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" PLACES128 "}, %128, %129, p, 1, 1, 0, 0; }"
                 : OPERANDS128(0) : "l"(a), "l"(b), "r"(add));
}

template <int BN>
__device__ void products(float (&sum)[BN / 2], unsigned a, unsigned b, bool add) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) product(sum, descriptor(a + 32 * k), descriptor(b + 32 * k), add || k);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING, int COUNT>
__device__ void products_wait(float (&sum)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    if (PENDING == 0)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // no read of a sum may move up
}
// The group's product is complete when one of its threads has waited for it.
__device__ inline void group_read_stage() {}

#else

__device__ inline void load_matrices(unsigned (&r)[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// Sixteen rows of a and eight rows of b. Source: PTX ISA, fragments of mma.m16n8k16.
__device__ inline void product(float* d, const unsigned (&a)[4], unsigned low, unsigned high) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : OPERANDS4(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}
// Address of 16 bytes of a tile of rows of 128 bytes, swizzled by 128 bytes: they lie at their place xor the row.
__device__ inline unsigned swizzled(unsigned tile, int row, int place) { return tile + row * 128 + ((place ^ row % 8) << 4); }

template <int BN>
__device__ void products(float (&sum)[BN / 2], unsigned a, unsigned b, bool add) {
    const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16;
    if (!add)
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) sum[i] = 0;
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) {
        unsigned left[4];
        load_matrices(left, swizzled(a, first + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int j = 0; j < BN / 16; ++j) {
            unsigned right[4];
            load_matrices(right, swizzled(b, j * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            product(sum + 8 * j, left, right[0], right[1]);
            product(sum + 8 * j + 4, left, right[2], right[3]);
        }
    }
}
template <int PENDING, int COUNT>
__device__ void products_wait(float (&)[COUNT]) {}
// A stage is free when all four warps of the group have read it.
__device__ inline void group_read_stage() { asm volatile("bar.sync %0, 128;" ::"r"(threadIdx.x / 128 + 4) : "memory"); }

#endif

// One consumer's way through the contracted dimension. Its 64 rows begin `offset` bytes into the stage's first operand.
template <int BN, int STEPS, int DEPTH>
__device__ void consume(float (&sum)[BN / 2], Ring<DEPTH>& ring, unsigned tiles, unsigned full, unsigned empty, int offset) {
    constexpr int stage_bytes = (128 + BN) * 128;
    int before = -1;
    for (int step = 0; step < STEPS; ++step) {
        barrier_wait(full + 8 * ring.stage, ring.parity);
        const unsigned at = tiles + ring.stage * stage_bytes;
        products<BN>(sum, at + offset, at + 128 * 128, step > 0);
        products_wait<1>(sum);
        group_read_stage();
        if (before >= 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * before);  // that step's product is done
        before = ring.stage;
        ring.advance();
    }
    products_wait<0>(sum);
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * before);
}

// Shared memory: barriers, then DEPTH stages of (128 + BN) rows, then what the body adds; all on 1,024-byte bounds.
template <int DEPTH>
__device__ unsigned prepare(unsigned char* raw, unsigned& full, unsigned& empty) {
    const unsigned base = (address(raw) + 1023) & ~1023u;
    full = base, empty = base + 8 * DEPTH;
    if (threadIdx.x == 0) {
        for (int s = 0; s < DEPTH; ++s) barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    return base + 1024;
}

// --- large tiles -----------------------------------------------------------------------------------------------------

struct Tile {
    int row, column;
};

// TALL tiles down, then across: blocks that run together share rows of both operands in L2.
template <int TALL>
__device__ Tile tile_at(int number, int down, int across) {
    const int first = number / (TALL * across) * TALL, height = min(down - first, TALL), rest = number % (TALL * across);
    return {first + rest % height, rest / height};
}

// out[m, columns] = finish(x[m, K] * w[., K]^T). With gates a tile's columns are BN / 2 gate rows and as many up rows of w.
template <int BN, int K, int DEPTH, int TALL, class Finish>
__device__ void large_tiles(const TensorMap& x, const TensorMap& w, const TensorMap& out, int m, int columns, int up, const Finish& finish) {
    extern __shared__ unsigned char raw[];
    constexpr int width = Finish::gated ? BN / 2 : BN, stage_bytes = (128 + BN) * 128;
    unsigned full, empty;
    const unsigned tiles = prepare<DEPTH>(raw, full, empty), staging = tiles + DEPTH * stage_bytes;
    const int down = (m + 127) / 128, across = columns / width, group = threadIdx.x / 128 - 1;
    if (group < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 0) return;
        Ring<DEPTH> ring = {0, 1};
        for (int number = blockIdx.x; number < down * across; number += gridDim.x) {
            const Tile tile = tile_at<TALL>(number, down, across);
            for (int k = 0; k < K; k += STEP, ring.advance()) {
                const unsigned at = tiles + ring.stage * stage_bytes, barrier = full + 8 * ring.stage;
                barrier_wait(empty + 8 * ring.stage, ring.parity);
                barrier_expect(barrier, stage_bytes);
                copy_in(at, x, k, tile.row * 128, barrier);
                copy_in(at + 128 * 128, w, k, tile.column * width, barrier);
                if (Finish::gated) copy_in(at + 128 * 128 + width * 128, w, k, up + tile.column * width, barrier);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    const unsigned mine = staging + group * 2 * BOX_BYTES;
    Ring<DEPTH> ring = {0, 0};
    for (int number = blockIdx.x; number < down * across; number += gridDim.x) {
        const Tile tile = tile_at<TALL>(number, down, across);
        float sum[BN / 2];
        consume<BN, K / STEP, DEPTH>(sum, ring, tiles, full, empty, group * BOX_BYTES);
#pragma unroll
        for (int half = 0; half < (width + 127) / 128; ++half) {
            constexpr int boxes = width < 128 ? 1 : 2;
            if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            group_sync(group);
#pragma unroll
            for (int j = 0; j < 8 * boxes; ++j)
#pragma unroll
                for (int low = 0; low < 2; ++low) {  // this row, and the one eight further down
                    const int i = (half * 16 + j) * 4 + low * 2, r = row + 8 * low;
                    unsigned pair;
                    if constexpr (Finish::gated)
                        pair = packed(finish(sum[i], sum[BN / 4 + i]), finish(sum[i + 1], sum[BN / 4 + i + 1]));
                    else
                        pair = packed(finish(sum[i]), finish(sum[i + 1]));
                    const unsigned to = mine + j / 8 * BOX_BYTES + r * 128 + ((j % 8 ^ r % 8) << 4) + lane % 4 * 4;
                    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pair) : "memory");
                }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            group_sync(group);
            if (threadIdx.x % 128 == 0) {
                for (int box = 0; box < boxes; ++box)
                    copy_out(out, tile.column * width + half * 128 + box * 64, tile.row * 128 + group * 64, mine + box * BOX_BYTES);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
        }
    }
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// --- few tokens ------------------------------------------------------------------------------------------------------

__device__ inline float4 load_from(unsigned local, int rank) {
    unsigned remote;
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(remote));
    return v;
}
__device__ inline void operator+=(float4& a, float4 b) { a = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// out[m, columns] = finish(x[m, K] * w[., K]^T). blockIdx.x: tile of 128 rows of w (64 gates and 64 ups), and share of K in
// the cluster of SPLIT blocks; blockIdx.y: BN tokens.
template <int BN, int K, int DEPTH, int SPLIT, class Finish>
__device__ void few_tokens(const TensorMap& x, const TensorMap& w, __nv_bfloat16* out, int m, int columns, int up, const Finish& finish) {
    extern __shared__ unsigned char raw[];
    constexpr int width = Finish::gated ? 64 : 128, stage_bytes = (128 + BN) * 128, steps = K / SPLIT / STEP, pitch = 132;
    static_assert(BN * pitch * 4 <= DEPTH * stage_bytes, "the sums take the place of the stages");
    unsigned full, empty;
    const unsigned tiles = prepare<DEPTH>(raw, full, empty);
    const int rank = blockIdx.x % SPLIT, first = blockIdx.x / SPLIT * width, token = blockIdx.y * BN, group = threadIdx.x / 128;
    if (group == 2) {
        if (threadIdx.x == 256) {
            Ring<DEPTH> ring = {0, 1};
            for (int k = rank * (K / SPLIT), step = 0; step < steps; ++step, k += STEP, ring.advance()) {
                const unsigned at = tiles + ring.stage * stage_bytes, barrier = full + 8 * ring.stage;
                barrier_wait(empty + 8 * ring.stage, ring.parity);
                barrier_expect(barrier, stage_bytes);
                copy_in(at, w, k, first, barrier);
                copy_in(at + BOX_BYTES, w, k, (Finish::gated ? up : 64) + first, barrier);
                copy_in(at + 2 * BOX_BYTES, x, k, token, barrier);
            }
        }
        __syncwarp();
    } else {
        Ring<DEPTH> ring = {0, 0};
        float sum[BN / 2];
        consume<BN, steps, DEPTH>(sum, ring, tiles, full, empty, group * BOX_BYTES);
        asm volatile("bar.sync 1, 256;" ::: "memory");  // nobody needs the stages any more
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) {
            const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, r = row + i % 4 / 2 * 8;
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(tiles + (column * pitch + r) * 4), "f"(sum[i]) : "memory");
        }
    }
    cluster_sync();
    constexpr int share = width / SPLIT;  // this block's part of the tile's rows, four a thread
    static_assert(share % 4 == 0 && pitch % 4 == 0, "sums are read four at a time");
#pragma unroll 2
    for (int i = threadIdx.x; i < share / 4 * min(BN, m - token); i += FEW_THREADS) {
        const int r = rank * share + i % (share / 4) * 4, t = i / (share / 4);
        float4 value = {}, above = {};
#pragma unroll
        for (int other = 0; other < SPLIT; ++other) {
            value += load_from(tiles + (t * pitch + r) * 4, other);
            if (Finish::gated) above += load_from(tiles + (t * pitch + 64 + r) * 4, other);
        }
        unsigned long long low, high;  // not two pairs, which NVRTC 13.5 stores one by one
        if constexpr (Finish::gated)
            low = packed(finish(value.x, above.x), finish(value.y, above.y)), high = packed(finish(value.z, above.z), finish(value.w, above.w));
        else
            low = packed(finish(value.x), finish(value.y)), high = packed(finish(value.z), finish(value.w));
        *reinterpret_cast<unsigned long long*>(out + (size_t)(token + t) * columns + first + r) = high << 32 | low;
    }
    cluster_sync();  // no block may end while another still reads its sums
}
