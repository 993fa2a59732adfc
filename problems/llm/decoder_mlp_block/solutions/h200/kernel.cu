// Feed-forward half of a decoder layer in three launches: residual add and RMS norm; gate and up projection with the gating
// in its epilogue; down projection.
#include "hopper.cuh"

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

// One block a row, held in registers; statistics of the sum before it is rounded.
extern "C" __global__ void __launch_bounds__(AXIS_hidden / 8) add_norm(const Eight* __restrict__ x, const Eight* __restrict__ residual, const Eight* __restrict__ norm_weight, Eight* __restrict__ new_residual, Eight* __restrict__ normed) {
    constexpr int warps = AXIS_hidden / 8 / 32;
    const size_t at = (size_t)blockIdx.x * (AXIS_hidden / 8) + threadIdx.x;
    const Eight a = x[at], b = residual[at], w = norm_weight[threadIdx.x];
    float2 total[4];
    Eight result;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 f = a[i], g = b[i];
        total[i] = make_float2(f.x + g.x, f.y + g.y);
        result.set(i, total[i].x, total[i].y);
        sum = fmaf(total[i].x, total[i].x, fmaf(total[i].y, total[i].y, sum));
    }
    new_residual[at] = result;
#pragma unroll
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    __shared__ float partial[warps];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) sum += partial[i];
    const float rms = rsqrtf(sum / AXIS_hidden + 1e-5f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 g = w[i];
        result.set(i, total[i].x * rms * g.x, total[i].y * rms * g.y);
    }
    normed[at] = result;
}

struct Gate {
    static constexpr bool gated = true;
    __device__ float operator()(float gate, float up) const { return gate / (1.0f + __expf(-gate)) * up; }
};

template <int BN, int DEPTH>
__global__ void __launch_bounds__(LARGE_THREADS, 1) gate_up_large(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap out, int m) {
    large_tiles<BN, AXIS_hidden, DEPTH, 8>(x, w, out, m, AXIS_intermediate, AXIS_intermediate, Gate());
}
template <int BN, int DEPTH, int SPLIT>
__global__ void __launch_bounds__(FEW_THREADS) gate_up_few(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, __nv_bfloat16* out, int m) {
    few_tokens<BN, AXIS_hidden, DEPTH, SPLIT>(x, w, out, m, AXIS_intermediate, AXIS_intermediate, Gate());
}
template <int BN, int DEPTH>
__global__ void __launch_bounds__(LARGE_THREADS, 1) down_large(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap out, int m) {
    large_tiles<BN, AXIS_intermediate, DEPTH, 8>(x, w, out, m, AXIS_hidden, 0, Plain());
}
template <int BN, int DEPTH, int SPLIT>
__global__ void __launch_bounds__(FEW_THREADS) down_few(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, __nv_bfloat16* out, int m) {
    few_tokens<BN, AXIS_intermediate, DEPTH, SPLIT>(x, w, out, m, AXIS_hidden, 0, Plain());
}
