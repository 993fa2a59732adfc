"""CUDA C++ extensions on disk, for tests of their builder and loader. These extensions have host code only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.formats.solutions import load_solution
from harness.model.solution import Solution

TVM_FFI = """
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <cstdlib>

#include "parts.h"

namespace ffi = tvm::ffi;

void run(ffi::TensorView x, double factor, ffi::TensorView y) {
    scale(static_cast<const float*>(x.data_ptr()), factor, static_cast<float*>(y.data_ptr()), x.size(0));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run)

struct Host {
    void AllocData(DLTensor* made) { made->data = std::malloc(4 * made->shape[0]); }
    void FreeData(DLTensor* made) { std::free(made->data); }
};
ffi::Tensor returned(ffi::TensorView x, double factor) {
    ffi::Tensor y = ffi::Tensor::FromNDAlloc(Host(), x.shape(), x.dtype(), x.device());
    scale(static_cast<const float*>(x.data_ptr()), factor, static_cast<float*>(y.data_ptr()), x.size(0));
    return y;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(returned, returned)
ffi::Array<ffi::Tensor> listed(ffi::TensorView x, double factor) { return {returned(x, factor)}; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(listed, listed)

void refuses(ffi::TensorView x, double factor, ffi::TensorView y) {
    if (x.size(0) == AXIS_n) TVM_FFI_THROW(ValueError) << "x has " << x.ndim() << " dimensions, not two";
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(refuses, refuses)

void hidden(ffi::TensorView x, double factor, ffi::TensorView y) {}
"""
TORCH = """
#include <torch/extension.h>

#include "parts.h"

void run(const torch::Tensor& x, double factor, torch::Tensor y) {
    TORCH_CHECK(x.dim() == 1, "x has ", x.dim(), " dimensions, not one");
    scale(x.data_ptr<float>(), factor, y.data_ptr<float>(), x.size(0));
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
PARTS: Mapping[str, str] = {
    "parts.h": "#pragma once\n#include <cstdint>\nvoid scale(const float*, double, float*, int64_t);\n",
    "parts/scale.cc": (
        '#include "parts.h"\nvoid scale(const float* x, double factor, float* y, int64_t n) {\n'
        "    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (float)factor;\n}\n"
    ),
}
"""A header and a source that both extensions use."""
NEEDS_NVCC = "no nvcc with its headers here: neither a CUDA toolkit nor NVIDIA's wheels"


def write_extension(
    directory: Path, source: str = TVM_FFI, *, file: str = "main.cpp", function: str = "run", **spec: Any
) -> Solution:
    """Write a `cuda_cpp` solution with `PARTS` beside its source."""
    whole = {"language": "cuda_cpp", "entry": f"{file}::{function}", **spec}
    for name, text in {**PARTS, file: source, "solution.yaml": yaml.safe_dump(whole)}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return load_solution(directory)
