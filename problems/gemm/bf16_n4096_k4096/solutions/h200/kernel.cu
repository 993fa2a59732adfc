// y = x * w^T for any number of tokens: four kernels from two bodies, of which the plan launches one by the number of tokens.
//
// STAGES  of the ring in large tiles of 256 columns (48 KB each)
// GROUP   tiles down before the next column
// SPARE   multiprocessors that the large tiles' persistent launch leaves out
#include "hopper.cuh"

template <int BN, int DEPTH>
__global__ void __launch_bounds__(LARGE_THREADS, 1) large(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap y, int m) {
    large_tiles<BN, AXIS_k, DEPTH, GROUP>(x, w, y, m, AXIS_n, 0, Plain());
}

template <int BN, int DEPTH, int SPLIT>
__global__ void __launch_bounds__(FEW_THREADS) few(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, __nv_bfloat16* y, int m) {
    few_tokens<BN, AXIS_k, DEPTH, SPLIT>(x, w, y, m, AXIS_n, 0, Plain());
}
