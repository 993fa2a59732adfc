// Backward pass of RMS normalisation over the residual stream, in two launches: along rows, then along columns.
//
// BLOCK    threads a row in the first launch
// COLUMNS  vectors of four columns a block in the second, which has 256 / COLUMNS threads on each

constexpr int ROW = AXIS_hidden / 4, VECTORS = ROW / BLOCK, WARPS = BLOCK / 32;
static_assert(VECTORS * BLOCK == ROW, "a row is a whole number of vectors a thread");

__device__ float dot(float4 a, float4 b) { return fmaf(a.x, b.x, a.y * b.y) + fmaf(a.z, b.z, a.w * b.w); }
__device__ float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

// The mean square and the projection need one reduction only: both sums are linear in what a row holds.
extern "C" __global__ void __launch_bounds__(BLOCK) row_gradients(const float4* __restrict__ grad_output, const float4* __restrict__ grad_residual, const float4* __restrict__ hidden_states, const float4* __restrict__ weight, float eps, float4* __restrict__ grad_hidden_states, float* __restrict__ rstds) {
    const int row = blockIdx.x * ROW;
    float4 state[VECTORS], grad[VECTORS], residual[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const int i = v * BLOCK + threadIdx.x;
        state[v] = hidden_states[row + i];
        grad[v] = grad_output[row + i] * weight[i];
        residual[v] = grad_residual[row + i];
    }
    float squares = 0, products = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        squares += dot(state[v], state[v]);
        products += dot(grad[v], state[v]);
    }
#pragma unroll
    for (int lane = 16; lane; lane /= 2) {
        squares += __shfl_xor_sync(~0u, squares, lane);
        products += __shfl_xor_sync(~0u, products, lane);
    }
    __shared__ float2 partial[WARPS];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = make_float2(squares, products);
    __syncthreads();
    squares = products = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        squares += partial[w].x;
        products += partial[w].y;
    }
    const float rstd = rsqrtf(squares / AXIS_hidden + eps);
    const float projection = rstd * rstd * (products / AXIS_hidden);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const float4 g = grad[v], s = state[v], r = residual[v];
        grad_hidden_states[row + v * BLOCK + threadIdx.x] = make_float4(
            fmaf(rstd, fmaf(-projection, s.x, g.x), r.x), fmaf(rstd, fmaf(-projection, s.y, g.y), r.y),
            fmaf(rstd, fmaf(-projection, s.z, g.z), r.z), fmaf(rstd, fmaf(-projection, s.w, g.w), r.w));
    }
    if (threadIdx.x == 0) rstds[blockIdx.x] = rstd;
}

extern "C" __global__ void __launch_bounds__(256) weight_gradient(const float4* __restrict__ grad_output, const float4* __restrict__ hidden_states, const float* __restrict__ rstds, float4* __restrict__ grad_weight, int rows) {
    constexpr int lanes = 256 / COLUMNS;
    const int column = blockIdx.x * COLUMNS + threadIdx.x;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int row = threadIdx.y; row < rows; row += lanes) {
        const float4 g = grad_output[row * ROW + column], s = hidden_states[row * ROW + column];
        const float rstd = rstds[row];
        sum.x = fmaf(g.x, s.x * rstd, sum.x);
        sum.y = fmaf(g.y, s.y * rstd, sum.y);
        sum.z = fmaf(g.z, s.z * rstd, sum.z);
        sum.w = fmaf(g.w, s.w * rstd, sum.w);
    }
    __shared__ float4 partial[lanes][COLUMNS];
    partial[threadIdx.y][threadIdx.x] = sum;
#pragma unroll
    for (int half = lanes / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) {
            const float4 other = partial[threadIdx.y + half][threadIdx.x];
            sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
            partial[threadIdx.y][threadIdx.x] = sum;
        }
    }
    if (threadIdx.y == 0) grad_weight[column] = sum;
}
