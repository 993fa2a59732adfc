// silu(gate) * up over 16-byte vectors of bf16, arithmetic in float; called through TVM-FFI.
//
// BLOCK              threads a block (a param)
// AXIS_intermediate  the problem's constant axis
#include <cuda_bf16.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

static_assert(AXIS_intermediate % 8 == 0, "a vector lies in one row");

struct alignas(16) Eight {
    __nv_bfloat162 pair[4];
};

__global__ void __launch_bounds__(BLOCK) swiglu(const Eight* __restrict__ gate, const Eight* __restrict__ up, Eight* __restrict__ output, int64_t count) {
    const int64_t at = blockIdx.x * int64_t(BLOCK) + threadIdx.x;
    if (at >= count) return;
    const Eight g = gate[at], u = up[at];
    Eight result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 x = __bfloat1622float2(g.pair[i]), y = __bfloat1622float2(u.pair[i]);
        result.pair[i] = __floats2bfloat162_rn(x.x / (1.0f + __expf(-x.x)) * y.x, x.y / (1.0f + __expf(-x.y)) * y.y);
    }
    output[at] = result;
}

// Inputs in the definition's order, then the outputs. A TensorView borrows: nothing is copied or counted.
void run(ffi::TensorView gate, ffi::TensorView up, ffi::TensorView output) {
    const int64_t count = gate.size(0) * AXIS_intermediate / 8;
    if (count == 0) return;
    // The stream that torch works on, for whoever calls this.
    const DLDevice device = gate.device();
    const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    swiglu<<<(count + BLOCK - 1) / BLOCK, BLOCK, 0, stream>>>(
        static_cast<const Eight*>(gate.data_ptr()), static_cast<const Eight*>(up.data_ptr()), static_cast<Eight*>(output.data_ptr()), count);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "the launch failed: " << cudaGetErrorString(error);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run)
