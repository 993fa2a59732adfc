// Depthwise causal convolution of width 4 with bias, then SiLU. A thread makes four neighbouring outputs of the tensor
// seen as one long vector: its loads are 16 bytes wide at any length, though a row may end within them.
//
// BLOCK  threads a block

static_assert(AXIS_width == 4, "a filter is one float4");
static_assert(AXIS_channels % 4 == 0, "the tensor is a whole number of vectors at any length");

extern "C" __global__ void __launch_bounds__(BLOCK) causal_conv1d_silu(const float4* __restrict__ x, const float4* __restrict__ weight, const float* __restrict__ bias, float4* __restrict__ output, int length, int vectors) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= vectors) return;
    // The vector before this one is the neighbour's: it comes from the L1 cache.
    const float4 here = x[i], before = x[max(i - 1, 0)];
    const float at[7] = {before.y, before.z, before.w, here.x, here.y, here.z, here.w};
    int row = 4 * i / length, position = 4 * i - row * length;
    float4 filter = weight[row % AXIS_channels];
    float offset = bias[row % AXIS_channels];
    float result[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (position == length) {
            position = 0;
            ++row;
            filter = weight[row % AXIS_channels];
            offset = bias[row % AXIS_channels];
        }
        float sum = fmaf(at[j + 3], filter.w, offset);
        if (position >= 1) sum = fmaf(at[j + 2], filter.z, sum);
        if (position >= 2) sum = fmaf(at[j + 1], filter.y, sum);
        if (position >= 3) sum = fmaf(at[j], filter.x, sum);
        result[j] = sum / (1.0f + expf(-sum));
        ++position;
    }
    output[i] = make_float4(result[0], result[1], result[2], result[3]);
}
