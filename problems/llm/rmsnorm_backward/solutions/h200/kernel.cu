// Gradients of RMS normalisation in one pass over grad_output and x. A block takes every BLOCKS-th row; its share of the
// weight's gradient stays in registers until its rows are done, and a second launch adds the shares up, always in the
// same order. The next row is on its way while the present one is summed.
//
// BLOCKS  blocks of the first launch
// BLOCK   threads a row
#include <cuda_bf16.h>

constexpr int ROW = AXIS_hidden / 8, VECTORS = ROW / BLOCK, WARPS = BLOCK / 32;
static_assert(VECTORS * BLOCK == ROW, "a row is a whole number of vectors a thread");

// Eight bf16, loaded and stored as one uint4: NVRTC 13.5 splits the copy of a struct of pairs into 4-byte accesses.
struct Eight {
    uint4 bits;
    __device__ float2 operator[](int i) const {
        const unsigned word = (&bits.x)[i];
        return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
    }
    __device__ void set(int i, float low, float high) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        (&bits.x)[i] = *reinterpret_cast<const unsigned*>(&pair);
    }
};

struct Row {
    Eight grad[VECTORS], x[VECTORS];
    float rstd;
};

__device__ void load(Row& row, const Eight* grad_output, const Eight* x, const float* rstd, int at) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        row.grad[v] = grad_output[(size_t)at * ROW + v * BLOCK + threadIdx.x];
        row.x[v] = x[(size_t)at * ROW + v * BLOCK + threadIdx.x];
    }
    row.rstd = rstd[at];
}

extern "C" __global__ void __launch_bounds__(BLOCK) gradients(const Eight* __restrict__ grad_output, const Eight* __restrict__ x, const Eight* __restrict__ norm_weight, const float* __restrict__ rstd, Eight* __restrict__ grad_x, float4* __restrict__ partials, int tokens) {
    __shared__ float partial[2][WARPS];  // two, so that one barrier a row is enough
    Eight weight[VECTORS];
    float2 share[VECTORS][4] = {};
    Row next;
    if (blockIdx.x < tokens) load(next, grad_output, x, rstd, blockIdx.x);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) weight[v] = norm_weight[v * BLOCK + threadIdx.x];
    for (int row = blockIdx.x, turn = 0; row < tokens; row += BLOCKS, turn ^= 1) {
        const Row here = next;
        if (row + BLOCKS < tokens) load(next, grad_output, x, rstd, row + BLOCKS);
        float inner = 0;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 g = here.grad[v][i], w = weight[v][i];
                const float2 value = here.x[v][i];
                inner = fmaf(g.x * w.x, value.x, fmaf(g.y * w.y, value.y, inner));
                share[v][i].x = fmaf(g.x, value.x * here.rstd, share[v][i].x);
                share[v][i].y = fmaf(g.y, value.y * here.rstd, share[v][i].y);
            }
#pragma unroll
        for (int lane = 16; lane; lane /= 2) inner += __shfl_xor_sync(~0u, inner, lane);
        if (threadIdx.x % 32 == 0) partial[turn][threadIdx.x / 32] = inner;
        __syncthreads();
        inner = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) inner += partial[turn][w];
        const float pull = inner / AXIS_hidden * here.rstd * here.rstd;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            Eight result;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 g = here.grad[v][i], w = weight[v][i];
                const float2 value = here.x[v][i];
                result.set(i, here.rstd * fmaf(-pull, value.x, g.x * w.x), here.rstd * fmaf(-pull, value.y, g.y * w.y));
            }
            grad_x[(size_t)row * ROW + v * BLOCK + threadIdx.x] = result;
        }
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 a = share[v][2 * half], b = share[v][2 * half + 1];
            partials[(size_t)blockIdx.x * (AXIS_hidden / 4) + 2 * (v * BLOCK + threadIdx.x) + half] = make_float4(a.x, a.y, b.x, b.y);
        }
}

// Eight vectors of four columns a block, 32 threads down each.
extern "C" __global__ void __launch_bounds__(256) sum_partials(const float4* __restrict__ partials, float4* __restrict__ grad_weight) {
    const int column = blockIdx.x * 8 + threadIdx.x;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int block = threadIdx.y; block < BLOCKS; block += 32) {
        const float4 p = partials[(size_t)block * (AXIS_hidden / 4) + column];
        sum = make_float4(sum.x + p.x, sum.y + p.y, sum.z + p.z, sum.w + p.w);
    }
    __shared__ float4 held[32][8];
    held[threadIdx.y][threadIdx.x] = sum;
#pragma unroll
    for (int half = 16; half; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) {
            const float4 p = held[threadIdx.y + half][threadIdx.x];
            sum = make_float4(sum.x + p.x, sum.y + p.y, sum.z + p.z, sum.w + p.w);
            held[threadIdx.y][threadIdx.x] = sum;
        }
    }
    if (threadIdx.y == 0) grad_weight[column] = sum;
}
