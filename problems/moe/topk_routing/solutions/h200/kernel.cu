// The eight largest of 128 logits, softmax over them, and how many tokens each expert got. One warp a token.
//
// Softmax over all experts, cut to eight and normalised, is softmax over the eight. Equal logits go to the lower expert.
//
// WARPS   warps a block
// TOKENS  tokens a warp, one after the other
#include <cuda_runtime.h>

static_assert(AXIS_num_experts == 128 && AXIS_top_k == 8, "a lane holds four logits, and eight lanes the result");

// Unsigned integers in the order of the floats.
__device__ unsigned ordered(float value) {
    const unsigned bits = __float_as_uint(value);
    return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}
__device__ float plain(unsigned key) { return __uint_as_float(key ^ ((key >> 31) ? 0x80000000u : 0xffffffffu)); }

struct Candidate {
    unsigned key;
    int expert;
};

// Puts the larger first; of equal ones the lower expert, which is in front already.
__device__ void order(Candidate& a, Candidate& b) {
    const bool swap = b.key > a.key || (b.key == a.key && b.expert < a.expert);
    const Candidate first = swap ? b : a, second = swap ? a : b;
    a = first;
    b = second;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) route(const float4* __restrict__ logits, float* __restrict__ weights, int* __restrict__ ids, int* __restrict__ expert_counts, int* counts, int tokens) {
    __shared__ int tally[AXIS_num_experts];
    __shared__ bool last;
    for (int e = threadIdx.x; e < AXIS_num_experts; e += WARPS * 32) tally[e] = 0;
    __syncthreads();
    const int lane = threadIdx.x % 32, first = (blockIdx.x * WARPS + threadIdx.x / 32) * TOKENS;
    float4 held[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
        if (first + t < tokens) held[t] = __ldcs(logits + (size_t)(first + t) * 32 + lane);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        if (first + t >= tokens) break;
        Candidate c0 = {ordered(held[t].x), 4 * lane}, c1 = {ordered(held[t].y), 4 * lane + 1};
        Candidate c2 = {ordered(held[t].z), 4 * lane + 2}, c3 = {ordered(held[t].w), 4 * lane + 3};
        order(c0, c1), order(c2, c3), order(c0, c2), order(c1, c3), order(c1, c2);
        Candidate mine = {0, 0};  // lane k keeps the k-th
#pragma unroll
        for (int k = 0; k < AXIS_top_k; ++k) {
            const unsigned best = __reduce_max_sync(~0u, c0.key);
            const int winner = __ffs(__ballot_sync(~0u, c0.key == best)) - 1;
            const int expert = __shfl_sync(~0u, c0.expert, winner);
            if (lane == k) mine = {best, expert};
            if (lane == winner) c0 = c1, c1 = c2, c2 = c3, c3.key = 0;
        }
        const float largest = plain(__shfl_sync(~0u, mine.key, 0));
        const float share = expf(plain(mine.key) - largest);
        float sum = share;
#pragma unroll
        for (int step = 4; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);  // within the first eight lanes
        if (lane < AXIS_top_k) {
            weights[(size_t)(first + t) * AXIS_top_k + lane] = share / sum;
            ids[(size_t)(first + t) * AXIS_top_k + lane] = mine.expert;
            atomicAdd(&tally[mine.expert], 1);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < AXIS_num_experts; e += WARPS * 32)
        if (tally[e]) atomicAdd(&counts[e], tally[e]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&counts[AXIS_num_experts], 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int e = threadIdx.x; e < AXIS_num_experts; e += WARPS * 32) expert_counts[e] = __ldcg(&counts[e]);
}
