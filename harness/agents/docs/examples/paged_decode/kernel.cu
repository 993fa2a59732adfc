// One decoding step of grouped-query attention over a paged cache, bound by bandwidth. All pages of all sequences are dealt out
// evenly to persistent blocks, whatever the lengths. A page of all key heads is contiguous: a producer warp copies it whole
// (32 KB of keys, 32 KB of values) with two bulk copies into a ring. Eight consumer warps each take one key head of every page;
// the query heads that share it are rows of mma.m16n8k16. A sequence that spans blocks is merged by the last of them.
//
// BLOCKS  the SMs of the device; STAGES of 64 KB; LEAST pages a block, so that short caches do not give many small parts
#include <cuda_bf16.h>

constexpr int DIM = AXIS_head_dim, PAGE = AXIS_page_size, HEADS = AXIS_kv_heads, GROUP = AXIS_q_heads / HEADS;
static_assert(DIM == 128 && PAGE == 16 && HEADS == 8 && GROUP <= 8, "the fragments and warps are laid out for these");
constexpr int ROW_BYTES = HEADS * DIM * 2, PAGE_BYTES = PAGE * ROW_BYTES;
constexpr float LOWEST = -3.0e38f;

__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
__device__ void copy_page(unsigned to, const void* from, unsigned barrier) {
    unsigned long long once;  // a page is read once, so it should leave L2 first
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(PAGE_BYTES), "r"(barrier), "l"(once) : "memory");
}
__device__ uint4 load_shared(unsigned at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
// acc += a (16 x 16, rows 8 to 15 zero) * b (16 x 8)
__device__ void mma(float (&acc)[4], unsigned a0, unsigned a2, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1));
}
__device__ unsigned pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ unsigned word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Block b takes pages [begin(b), begin(b + 1)) of all sequences behind each other.
struct Share {
    int pages, blocks;
    __device__ int begin(int block) const { return (int)((long long)block * pages / blocks); }
};
// What a warp holds of one sequence: for head g (row) and the lane's dimensions 64 chunk + 16 c + 8 s + j.
struct Part {
    float out[2][8][4], most, total;
};

__device__ void add_page(Part& part, const uint4 (&query)[4], unsigned keys, unsigned values, int left) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float score[2][4] = {};  // [n]: head g, tokens 8 n + 2 c and 8 n + 2 c + 1
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 key = load_shared(keys + (8 * n + g) * ROW_BYTES + (4 * i + c) * 16);
            mma(score[n], query[i].x, query[i].y, key.x, key.y);
            mma(score[n], query[i].z, query[i].w, key.z, key.w);
        }
    const float scale = 1.4426950408889634f * rsqrtf((float)DIM);
    float p[4], most = part.most;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        p[s] = s / 2 * 8 + 2 * c + s % 2 < left ? score[s / 2][s % 2] * scale : LOWEST;
        most = fmaxf(most, p[s]);
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float fade = exp2f(part.most - most);  // `most` is finite: every page here has a token
    part.most = most;
    part.total *= fade;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        p[s] = exp2f(p[s] - most);
        part.total += p[s];
    }
    const unsigned p0 = pack(p[0], p[1]), p2 = pack(p[2], p[3]);
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
        uint4 value[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {  // tokens 2c, 2c + 1, 2c + 8, 2c + 9
            const int token = 2 * c + r % 2 + r / 2 * 8;
            value[r] = load_shared(values + token * ROW_BYTES + (8 * chunk + g) * 16);
            if (token >= left) value[r] = make_uint4(0, 0, 0, 0);  // values past the end may be NaN, and 0 * NaN is NaN
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const unsigned half = j % 2 ? 0x7632 : 0x5410;
            part.out[chunk][j][0] *= fade;
            part.out[chunk][j][1] *= fade;
            mma(part.out[chunk][j], p0, p2, __byte_perm(word(value[0], j / 2), word(value[1], j / 2), half),
                __byte_perm(word(value[2], j / 2), word(value[3], j / 2), half));
        }
    }
}

// Merge the parts that the blocks `first` to `last` left of a sequence that begins with page `start`; one key head, by a warp.
__device__ void merge(const Share& share, int first, int last, int start, int head, const float* sums, const float2* stats, uint2* output) {
    const int lane = threadIdx.x % 32;
    for (int g = 0; g < GROUP; ++g) {
        float most = LOWEST, total = 0;
        float4 sum = make_float4(0, 0, 0, 0);
        for (int b = first; b <= last; ++b) most = fmaxf(most, __ldcg(&stats[((2 * b + (share.begin(b) < start)) * HEADS + head) * GROUP + g]).x);
#pragma unroll 4
        for (int b = first; b <= last; ++b) {
            const int at = ((2 * b + (share.begin(b) < start)) * HEADS + head) * GROUP + g;
            const float2 stat = __ldcg(&stats[at]);
            const float4 part = __ldcg(reinterpret_cast<const float4*>(sums + (size_t)at * DIM) + lane);
            const float weight = exp2f(stat.x - most);
            total = fmaf(stat.y, weight, total);
            sum = make_float4(fmaf(part.x, weight, sum.x), fmaf(part.y, weight, sum.y), fmaf(part.z, weight, sum.z), fmaf(part.w, weight, sum.w));
        }
        output[g * (DIM / 4) + lane] = make_uint2(pack(sum.x / total, sum.y / total), pack(sum.z / total, sum.w / total));
    }
}

extern "C" __global__ void __launch_bounds__(288, 1)
    attend(const uint4* __restrict__ q, const unsigned char* __restrict__ k_cache, const unsigned char* __restrict__ v_cache,
           const int* __restrict__ page_table, const int* __restrict__ kv_lengths, __nv_bfloat16* output, float* sums, float2* stats,
           unsigned* done, int batch, int max_pages) {
    extern __shared__ unsigned char raw[];
    const unsigned base = (address(raw) + 1023) & ~1023u, full = base, empty = base + 8 * STAGES, ring = base + 1024;
    int* starts = reinterpret_cast<int*>(raw + (base - address(raw)) + 1024 + STAGES * 2 * PAGE_BYTES);  // [batch + 1]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * s) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * s), "r"(HEADS) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        starts[0] = 0;
    }
    if (warp == 1)  // pages before each sequence
#pragma unroll 4  // the loads of four rounds are under way together
        for (int first = 0, before = 0; first < batch; first += 32) {
            int pages = first + lane < batch ? (kv_lengths[first + lane] + PAGE - 1) / PAGE : 0;
            for (int step = 1; step < 32; step *= 2) {
                const int left = __shfl_up_sync(~0u, pages, step);
                if (lane >= step) pages += left;
            }
            if (first + lane < batch) starts[first + lane + 1] = before + pages;
            before += __shfl_sync(~0u, pages, 31);
        }
    __syncthreads();
    const Share share = {starts[batch], min((int)gridDim.x, max(1, starts[batch] / LEAST))};
    if ((int)blockIdx.x >= share.blocks) return;
    const int begin = share.begin(blockIdx.x), end = share.begin(blockIdx.x + 1);
    int sequence = 0;  // the one that page `begin` belongs to: the last with starts <= begin
    for (int step = 1 << 30; step; step /= 2)
        if (sequence + step < batch && starts[sequence + step] <= begin) sequence += step;
    int stage = 0;
    if (warp == HEADS) {
        unsigned parity = 1;  // the first lap finds every stage free
        for (int page = begin; page < end; ++sequence) {
            const int* table = page_table + (size_t)sequence * max_pages - starts[sequence];
            const int stop = min(end, starts[sequence + 1]);
            int next = page + lane < stop ? table[page + lane] : 0;
            while (page < stop) {
                const int held = next, count = min(32, stop - page);
                next = page + 32 + lane < stop ? table[page + 32 + lane] : 0;  // under way while these 32 pages are copied
                for (int i = 0; i < count; ++i) {
                    const size_t from = (size_t)__shfl_sync(~0u, held, i) * PAGE_BYTES;
                    if (lane == 0) {
                        const unsigned to = ring + stage * 2 * PAGE_BYTES, barrier = full + 8 * stage;
                        wait(empty + 8 * stage, parity);
                        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(2 * PAGE_BYTES) : "memory");
                        copy_page(to, k_cache + from, barrier);
                        copy_page(to + PAGE_BYTES, v_cache + from, barrier);
                    }
                    __syncwarp();
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
                page += count;
            }
        }
        return;
    }
    const int head = warp, g = lane / 4, c = lane % 4;
    unsigned parity = 0;
    for (int page = begin; page < end; ++sequence) {
        const int start = starts[sequence], stop = min(end, starts[sequence + 1]);
        if (page >= stop) continue;  // a sequence without tokens
        const int row = sequence * AXIS_q_heads + head * GROUP, left = kv_lengths[sequence] + start * PAGE;
        uint4 query[4] = {};  // dimensions 32 i + 8 c to 32 i + 8 c + 7 of head g
        if (g < GROUP)
#pragma unroll
            for (int i = 0; i < 4; ++i) query[i] = q[(row + g) * (DIM / 8) + 4 * i + c];
        Part part = {};
        part.most = LOWEST;
        const bool whole = page == start && stop == starts[sequence + 1];
        const int slot = 2 * blockIdx.x + (begin < start);
        for (; page < stop; ++page) {
            wait(full + 8 * stage, parity);
            const unsigned keys = ring + stage * 2 * PAGE_BYTES + head * DIM * 2;
            add_page(part, query, keys, keys + PAGE_BYTES, left - page * PAGE);
            __syncwarp();
            if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + 8 * stage) : "memory");
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        part.total += __shfl_xor_sync(~0u, part.total, 1);
        part.total += __shfl_xor_sync(~0u, part.total, 2);
        if (g < GROUP)
#pragma unroll
            for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    const int first = 64 * chunk + 16 * c + 8 * s;  // eight dimensions from here
                    float v[8];
#pragma unroll
                    for (int j = 0; j < 8; ++j) v[j] = part.out[chunk][j][s];
                    if (whole) {
                        const float inverse = 1 / part.total;
                        *reinterpret_cast<uint4*>(output + (size_t)(row + g) * DIM + first) =
                            make_uint4(pack(v[0] * inverse, v[1] * inverse), pack(v[2] * inverse, v[3] * inverse),
                                       pack(v[4] * inverse, v[5] * inverse), pack(v[6] * inverse, v[7] * inverse));
                    } else {
                        float4* to = reinterpret_cast<float4*>(sums + (size_t)((slot * HEADS + head) * GROUP + g) * DIM + first);
                        to[0] = make_float4(v[0], v[1], v[2], v[3]);
                        to[1] = make_float4(v[4], v[5], v[6], v[7]);
                    }
                }
        if (whole) continue;
        if (g < GROUP && c == 0) stats[(slot * HEADS + head) * GROUP + g] = make_float2(part.most, part.total);
        int first = blockIdx.x, last = blockIdx.x;  // the blocks that share this sequence
        while (share.begin(first) > start) --first;
        while (share.begin(last + 1) < starts[sequence + 1]) ++last;
        __threadfence();
        __syncwarp();
        unsigned before = 0;
        if (lane == 0) before = atomicAdd(&done[sequence * HEADS + head], 1u);
        if (__shfl_sync(~0u, before, 0) != (unsigned)(last - first)) continue;
        __threadfence();
        merge(share, first, last, start, head, sums, stats, reinterpret_cast<uint2*>(output + (size_t)row * DIM));
    }
}
