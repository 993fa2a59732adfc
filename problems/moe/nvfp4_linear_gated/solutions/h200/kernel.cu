// One NVFP4 expert: activations quantised, both operands laid out as bf16 without their tensor-wide scales, one product with
// the gate in its epilogue. A level times its block's e4m3 scale has at most six significant bits, so bf16 holds it exactly:
// the product is that of the quantised values, and the two tensor-wide scales multiply its result.
#include <cuda_fp8.h>

#include "hopper.cuh"

struct alignas(16) Eight {
    __nv_bfloat162 pair[4];
};

// Twice the level of a code without its sign: 0, 1, 2, 3, 4, 6, 8, 12.
__device__ float level_of(int code) {
    const float size = 0.5f * ((0xc8643210u >> (code & 7) * 4) & 15u);
    return code & 8 ? -size : size;
}
// The code nearest to a value in units of its block's step; ties go to the even code.
__device__ int code_of(float unit) {
    const float size = fabsf(unit);
    const int code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
    return code | (unit < 0 ? 8 : 0);
}
__device__ float from_e4m3(unsigned char bits) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3))); }

// A thread takes a block of 16: of the activations, then of the weight.
extern "C" __global__ void __launch_bounds__(256) lay_out(const Eight* __restrict__ x, const uint2* __restrict__ packed, const unsigned char* __restrict__ block_scales, const float* __restrict__ input_scale, Eight* __restrict__ activations, Eight* __restrict__ weight, int x_blocks, int weight_blocks) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= x_blocks + weight_blocks) return;
    float levels[16], scale;
    if (i < x_blocks) {
        float values[16], largest = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Eight eight = x[2 * i + half];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 f = __bfloat1622float2(eight.pair[j]);
                values[8 * half + 2 * j] = f.x, values[8 * half + 2 * j + 1] = f.y;
                largest = fmaxf(largest, fmaxf(fabsf(f.x), fabsf(f.y)));
            }
        }
        const float whole = *input_scale;
        scale = from_e4m3(__nv_cvt_float_to_fp8(fminf(largest / (6.0f * whole), 448.0f), __NV_SATFINITE, __NV_E4M3));
        const float step = scale * whole;
#pragma unroll
        for (int j = 0; j < 16; ++j) levels[j] = step > 0 ? level_of(code_of(values[j] / step)) : 0.0f;
    } else {
        i -= x_blocks;
        activations = weight;
        scale = from_e4m3(block_scales[i]);
        const uint2 codes = packed[i];
#pragma unroll
        for (int j = 0; j < 16; ++j) levels[j] = level_of((j < 8 ? codes.x : codes.y) >> 4 * (j % 8));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        Eight eight;
#pragma unroll
        for (int j = 0; j < 4; ++j) eight.pair[j] = __floats2bfloat162_rn(levels[8 * half + 2 * j] * scale, levels[8 * half + 2 * j + 1] * scale);
        activations[2 * i + half] = eight;
    }
}

struct Gate {
    static constexpr bool gated = true;
    float scale;
    __device__ float operator()(float gate, float up) const {
        gate *= scale, up *= scale;
        return gate / (1.0f + __expf(-gate)) * up;
    }
};

template <int BN, int DEPTH>
__global__ void __launch_bounds__(LARGE_THREADS, 1) large(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap out, const float* input_scale, const float* weight_scale, int m) {
    large_tiles<BN, AXIS_hidden, DEPTH, 8>(x, w, out, m, AXIS_expert, AXIS_expert, Gate{*input_scale * *weight_scale});
}

template <int BN, int DEPTH, int SPLIT>
__global__ void __launch_bounds__(FEW_THREADS) few(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, __nv_bfloat16* out, const float* input_scale, const float* weight_scale, int m) {
    few_tokens<BN, AXIS_hidden, DEPTH, SPLIT>(x, w, out, m, AXIS_expert, AXIS_expert, Gate{*input_scale * *weight_scale});
}
