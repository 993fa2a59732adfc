#pragma once
#include <cuda_runtime.h>

#include <cstdint>

void swiglu(const void* gate, const void* up, void* output, int64_t count, cudaStream_t stream);
