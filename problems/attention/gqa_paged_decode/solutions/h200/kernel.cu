// One decoding step of grouped-query attention over a paged cache. A sequence's pages are split among blocks, a block's
// among its warps; a warp takes a page (16 tokens) at a time, straight from memory into the registers of mma.m16n8k16.
// The last block of a sequence and key head to finish merges what the others left.
//
// The query heads that share a key head are the rows of the product (4 of 16). The order of the contracted dimension is
// free as long as both sides agree, so a lane's 16-byte load of a key serves as fragments of two steps; likewise each
// lane owns eight neighbouring dimensions of a value, one for each of eight products.
//
// BLOCKS  blocks, about
// WARPS   warps a block
#include <cuda_bf16.h>

constexpr int DIM = AXIS_head_dim, PAGE = AXIS_page_size, GROUP = AXIS_q_heads / AXIS_kv_heads;
static_assert(DIM == 128 && PAGE == 16 && GROUP <= 8, "the fragments are laid out for these");
constexpr int ROW = AXIS_kv_heads * DIM / 8;  // vectors from token to token
constexpr float LOG2E = 1.4426950408889634f, LOWEST = -3.0e38f;

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
__device__ uint4 load_once(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// Pages that one block of `splits` takes; never fewer than its warps can share.
__device__ int pages_a_split(int pages, int splits) { return max((pages + splits - 1) / splits, WARPS); }

extern "C" __global__ void __launch_bounds__(WARPS * 32) attend(const uint4* __restrict__ q, const uint4* __restrict__ k_cache, const uint4* __restrict__ v_cache, const int* __restrict__ page_table, const int* __restrict__ kv_lengths, uint2* __restrict__ output, float* sums, float2* stats, int* done, int max_pages) {
    const int kv_head = blockIdx.x, split = blockIdx.y, splits = gridDim.y, sequence = blockIdx.z;
    const int length = kv_lengths[sequence], pages = (length + PAGE - 1) / PAGE, share = pages_a_split(pages, splits);
    const int begin = split * share, end = min(begin + share, pages);
    if (begin >= end) return;  // whoever merges knows
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;

    uint4 query[4] = {};  // dimensions 32 i + 8 c to 32 i + 8 c + 7 of head g
    if (g < GROUP)
#pragma unroll
        for (int i = 0; i < 4; ++i) query[i] = q[(sequence * AXIS_q_heads + kv_head * GROUP + g) * (DIM / 8) + 4 * i + c];
    float out[2][8][4] = {};  // [chunk][j]: head g, dimensions 64 chunk + 16 c + j and 64 chunk + 16 c + 8 + j
    float largest = LOWEST, total = 0;
    const float scale = LOG2E * rsqrtf((float)DIM);

    const int* table = page_table + sequence * max_pages;
    int next = begin + warp < end ? table[begin + warp] : 0;
    for (int page = begin + warp; page < end; page += WARPS) {
        const size_t base = (size_t)next * PAGE * ROW + kv_head * (DIM / 8);
        if (page + WARPS < end) next = table[page + WARPS];
        uint4 key[2][4], value[4][2];
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) key[n][i] = load_once(k_cache + base + (8 * n + g) * ROW + 4 * i + c);
#pragma unroll
        for (int r = 0; r < 4; ++r)  // tokens 2c, 2c + 1, 2c + 8, 2c + 9
#pragma unroll
            for (int chunk = 0; chunk < 2; ++chunk)
                value[r][chunk] = load_once(v_cache + base + (2 * c + r % 2 + r / 2 * 8) * ROW + 8 * chunk + g);
        float score[2][4] = {};  // [n]: head g, tokens 8 n + 2 c and 8 n + 2 c + 1
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                mma(score[n], query[i].x, query[i].y, key[n][i].x, key[n][i].y);
                mma(score[n], query[i].z, query[i].w, key[n][i].z, key[n][i].w);
            }
        const int left = length - page * PAGE;
        float p[4], most = largest;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            p[s] = s / 2 * 8 + 2 * c + s % 2 < left ? score[s / 2][s % 2] * scale : LOWEST;
            most = fmaxf(most, p[s]);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float fade = exp2f(largest - most);  // `most` is finite: every page here has a token
        largest = most;
        total *= fade;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            p[s] = exp2f(p[s] - most);
            total += p[s];
        }
        const unsigned p0 = pack(p[0], p[1]), p2 = pack(p[2], p[3]);
#pragma unroll
        for (int r = 0; r < 4; ++r)
            if (2 * c + r % 2 + r / 2 * 8 >= left)  // what lies past the end may be anything, and 0 * NaN is no 0
                value[r][0] = value[r][1] = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const unsigned half = j % 2 ? 0x7632 : 0x5410;
                out[chunk][j][0] *= fade;
                out[chunk][j][1] *= fade;
                mma(out[chunk][j], p0, p2, __byte_perm(word(value[0][chunk], j / 2), word(value[1][chunk], j / 2), half),
                    __byte_perm(word(value[2][chunk], j / 2), word(value[3][chunk], j / 2), half));
            }
    }
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);

    // Put the warps together.
    __shared__ float most_of[WARPS][8], held[WARPS][GROUP][DIM + 4], total_of[WARPS][GROUP];
    if (c == 0) most_of[warp][g] = largest;
    __syncthreads();
    float most = LOWEST;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) most = fmaxf(most, most_of[w][g]);
    const float fade = exp2f(largest - most);  // 0 for a warp that had no page
    if (g < GROUP) {
        if (c == 0) total_of[warp][g] = total * fade;
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int s = 0; s < 2; ++s) held[warp][g][64 * chunk + 16 * c + 8 * s + j] = out[chunk][j][s] * fade;
    }
    __syncthreads();
    const int rows = gridDim.z * AXIS_q_heads, row = sequence * AXIS_q_heads + kv_head * GROUP;
    for (int i = threadIdx.x; i < GROUP * DIM; i += WARPS * 32) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += held[w][i / DIM][i % DIM];
        sums[(size_t)(split * rows + row) * DIM + i] = sum;
    }
    if (warp == 0 && c == 0 && g < GROUP) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += total_of[w][g];
        stats[split * rows + row + g] = make_float2(most, sum);
    }
    __threadfence();
    __syncthreads();
    const int used = (pages + share - 1) / share;
    __shared__ bool last;
    if (threadIdx.x == 0) last = atomicAdd(&done[sequence * AXIS_kv_heads + kv_head], 1) == used - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int i = threadIdx.x; i < GROUP * DIM / 4; i += WARPS * 32) {
        const int head = row + i / (DIM / 4);
        float highest = LOWEST, all = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int s = 0; s < used; ++s) highest = fmaxf(highest, __ldcg(&stats[s * rows + head]).x);
#pragma unroll 4
        for (int s = 0; s < used; ++s) {
            const float2 stat = __ldcg(&stats[s * rows + head]);
            const float4 part = __ldcg(reinterpret_cast<const float4*>(sums + (size_t)(s * rows + head) * DIM) + i % (DIM / 4));
            const float weight = exp2f(stat.x - highest);
            all = fmaf(stat.y, weight, all);
            sum = make_float4(fmaf(part.x, weight, sum.x), fmaf(part.y, weight, sum.y), fmaf(part.z, weight, sum.z), fmaf(part.w, weight, sum.w));
        }
        output[head * (DIM / 4) + i % (DIM / 4)] = make_uint2(pack(sum.x / all, sum.y / all), pack(sum.z / all, sum.w / all));
    }
}
