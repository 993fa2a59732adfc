"""CUDA C++ extensions of the problem `norm`, through both bindings."""

from __future__ import annotations

from harness.model.verdict import Verdict
from tests.gpu.cases import NORM, Attack

KERNEL = NORM + "__global__ void kernel(const float* x, float* out) { norm(x, out); }\n"
TVM_FFI = (
    KERNEL
    + """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

void launch(tvm::ffi::TensorView x, tvm::ffi::TensorView out) {
    const DLDevice device = x.device();
    const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    kernel<<<x.size(0), 256, 0, stream>>>(static_cast<const float*>(x.data_ptr()), static_cast<float*>(out.data_ptr()));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, launch)
"""
)
TORCH = (
    """
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>
"""
    + KERNEL
    + """
torch::Tensor run(torch::Tensor x) {
    torch::Tensor out = torch::empty_like(x);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    kernel<<<x.size(0), 256, 0, stream>>>(x.data_ptr<float>(), out.data_ptr<float>());
    return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
)


def extension(name: str, source: str, caught: tuple[Verdict, ...] = (), reason_part: str = "") -> Attack:
    return Attack(name, source, caught, language="cuda_cpp", binding="tvm_ffi", problem="norm", reason_part=reason_part)


RIGHT = (
    extension("tvm_ffi", TVM_FFI),
    Attack("torch", TORCH, language="cuda_cpp", binding="torch", problem="norm", destination_passing=False),
)
