// Layer norm without weights, then x * (1 + scale) + shift of the token's sample: one block a token, float4 loads.
//
// BLOCK  threads a token: 1152 floats are 288 vectors, 9 a thread at 32, 3 at 96, 1 at 288

constexpr int VECTORS = AXIS_hidden / 4 / BLOCK, WARPS = BLOCK / 32;
static_assert(VECTORS * 4 * BLOCK == AXIS_hidden, "a token is a whole number of vectors a thread");

// Every thread gets the block's sum. `partial` must not be one that another sum may still be read from.
__device__ float block_sum(float value, float* partial) {
#pragma unroll
    for (int lane = 16; lane; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
    if (WARPS == 1) return value;
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) value += partial[w];
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK) adaln_modulate(const float4* __restrict__ x, const float4* __restrict__ shift, const float4* __restrict__ scale, float4* __restrict__ output, int tokens) {
    constexpr int row_vectors = AXIS_hidden / 4;
    const size_t row = ((size_t)blockIdx.y * tokens + blockIdx.x) * row_vectors;
    const int sample = blockIdx.y * row_vectors;
    float4 held[VECTORS], factor[VECTORS], offset[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) held[v] = x[row + v * BLOCK + threadIdx.x];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {  // asked for now, so that their latency hides behind the sums'
        factor[v] = scale[sample + v * BLOCK + threadIdx.x];
        offset[v] = shift[sample + v * BLOCK + threadIdx.x];
    }
    __shared__ float partial[2][WARPS];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) sum += (held[v].x + held[v].y) + (held[v].z + held[v].w);
    const float mean = block_sum(sum, partial[0]) / AXIS_hidden;
    float squares = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        held[v] = make_float4(held[v].x - mean, held[v].y - mean, held[v].z - mean, held[v].w - mean);
        squares += (held[v].x * held[v].x + held[v].y * held[v].y) + (held[v].z * held[v].z + held[v].w * held[v].w);
    }
    const float rstd = rsqrtf(block_sum(squares, partial[1]) / AXIS_hidden + 1e-6f);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const float4 h = held[v], f = factor[v], o = offset[v];
        output[row + v * BLOCK + threadIdx.x] = make_float4(
            fmaf(h.x * rstd, 1.0f + f.x, o.x), fmaf(h.y * rstd, 1.0f + f.y, o.y),
            fmaf(h.z * rstd, 1.0f + f.z, o.z), fmaf(h.w * rstd, 1.0f + f.w, o.w));
    }
}
