// The extension: torch's tensors in, the launch in swiglu.cu.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include "swiglu.h"

static_assert(AXIS_intermediate % 8 == 0, "a vector lies in one row");

void run(const torch::Tensor& gate, const torch::Tensor& up, torch::Tensor output) {
    swiglu(gate.data_ptr(), up.data_ptr(), output.data_ptr(), gate.numel() / 8, c10::cuda::getCurrentCUDAStream());
    C10_CUDA_CHECK(cudaGetLastError());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
