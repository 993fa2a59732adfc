// One NVFP4 expert: activations quantised, both operands laid out as bf16 without their tensor-wide scales, one product with
// the gate in its epilogue. A level times its block's e4m3 scale has at most six significant bits, so bf16 holds it exactly:
// the product is that of the quantised values, and the two tensor-wide scales multiply its result.
#include <cuda_fp8.h>

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

// A thread takes half a block of 16, of the activations or, after them, of the weight: its 16 bytes of result lie beside its
// neighbours'. (With whole blocks every store fills half sectors, which made this pass three times as long.)
extern "C" __global__ void __launch_bounds__(256) lay_out(const Eight* __restrict__ x, const unsigned* __restrict__ packed, const unsigned char* __restrict__ block_scales, const float* __restrict__ input_scale, Eight* __restrict__ activations, Eight* __restrict__ weight, int x_halves, int weight_halves) {
    const int i = blockIdx.x * 256 + threadIdx.x, j = i - x_halves;
    if (i >= x_halves + weight_halves) return;
    float levels[8], scale;
    if (i < x_halves) {  // whole warps are, since a row is 256 halves
        const Eight eight = x[i];
        float values[8], largest = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const float2 f = eight[k];
            values[2 * k] = f.x, values[2 * k + 1] = f.y;
            largest = fmaxf(largest, fmaxf(fabsf(f.x), fabsf(f.y)));
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        const float whole = *input_scale;
        scale = from_e4m3(__nv_cvt_float_to_fp8(fminf(largest / (6.0f * whole), 448.0f), __NV_SATFINITE, __NV_E4M3));
        const float step = scale * whole;
#pragma unroll
        for (int k = 0; k < 8; ++k) levels[k] = step > 0 ? level_of(code_of(values[k] / step)) : 0.0f;
    } else {
        const unsigned codes = packed[j];
        scale = from_e4m3(block_scales[j / 2]);
#pragma unroll
        for (int k = 0; k < 8; ++k) levels[k] = level_of(codes >> 4 * k);
    }
    Eight result;
#pragma unroll
    for (int k = 0; k < 4; ++k) result.set(k, levels[2 * k] * scale, levels[2 * k + 1] * scale);
    (i < x_halves ? activations + i : weight + j)[0] = result;
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
