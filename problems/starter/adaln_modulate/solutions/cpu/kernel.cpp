// Layer norm without affine parameters, then x * (1 + scale) + shift.
//
// A row is 4.5 KiB: it is read from memory once and then twice more from the L1 cache.
//
// WIDTH     floats in a vector
// UNROLL    vectors of running sums, to hide the latency of an addition
// ONE_PASS  1: mean and variance from one pass, about a pivot taken from the row itself; 0: mean first
// STREAM    1: stores go around the caches, so that a line of the output is not read before it is written
// PREFETCH  how many rows ahead the last pass asks for, 0 to leave it to the hardware
#include <cmath>
#include <cstdint>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

typedef float Floats __attribute__((vector_size(4 * WIDTH), may_alias));
typedef float LooseFloats __attribute__((vector_size(4 * WIDTH), may_alias, aligned(4)));

constexpr int hidden = AXIS_hidden;
static_assert(hidden % (WIDTH * UNROLL) == 0, "a row is a whole number of unrolled vectors");

struct Moments {
    float mean, variance;
};

inline Floats load(const float* from) { return *(const LooseFloats*)from; }

template <bool stream>
inline void store(float* to, Floats value) {
    if (stream) {
#if defined(__AVX512F__) && WIDTH == 16
        return _mm512_stream_ps(to, (__m512)value);
#elif defined(__AVX2__) && WIDTH == 8
        return _mm256_stream_ps(to, (__m256)value);
#endif
    }
    *(LooseFloats*)to = value;
}

inline float total(Floats* sums) {
    for (int u = 1; u < UNROLL; ++u) sums[0] += sums[u];
    float sum = 0;
    for (int lane = 0; lane < WIDTH; ++lane) sum += sums[0][lane];
    return sum;
}

inline Moments two_passes(const float* x) {
    Floats sums[UNROLL] = {}, squares[UNROLL] = {};
    for (int i = 0; i < hidden; i += WIDTH * UNROLL)
        for (int u = 0; u < UNROLL; ++u) sums[u] += load(x + i + u * WIDTH);
    const float mean = total(sums) / hidden;
    for (int i = 0; i < hidden; i += WIDTH * UNROLL)
        for (int u = 0; u < UNROLL; ++u) {
            const Floats centred = load(x + i + u * WIDTH) - mean;
            squares[u] += centred * centred;
        }
    return {mean, total(squares) / hidden};
}

// Sums about a pivot near the mean: E[(x - pivot)^2] - (mean - pivot)^2 then loses nothing to cancellation.
inline Moments one_pass(const float* x) {
    Floats sums[UNROLL] = {}, squares[UNROLL] = {};
    float pivot = 0;
    for (int i = 0; i < 16; ++i) pivot += x[i];
    pivot /= 16;
    for (int i = 0; i < hidden; i += WIDTH * UNROLL)
        for (int u = 0; u < UNROLL; ++u) {
            const Floats centred = load(x + i + u * WIDTH) - pivot;
            sums[u] += centred;
            squares[u] += centred * centred;
        }
    const float offset = total(sums) / hidden;
    const float variance = total(squares) / hidden - offset * offset;
    return {pivot + offset, variance > 0 ? variance : 0};
}

template <bool stream>
void modulate(const float* x, const float* shift, const float* scale, float* output, int64_t batch, int64_t tokens) {
    for (int64_t sample = 0; sample < batch; ++sample, shift += hidden, scale += hidden)
        for (int64_t token = 0; token < tokens; ++token, x += hidden, output += hidden) {
            const Moments moments = ONE_PASS ? one_pass(x) : two_passes(x);
            const float rstd = 1.0f / std::sqrt(moments.variance + 1e-6f);
            for (int i = 0; i < hidden; i += WIDTH * UNROLL)
                for (int u = 0; u < UNROLL; ++u) {
                    const int at = i + u * WIDTH;
                    if (PREFETCH) __builtin_prefetch(x + at + PREFETCH * hidden);
                    const Floats normed = (load(x + at) - moments.mean) * rstd;
                    store<stream>(output + at, normed * (1.0f + load(scale + at)) + load(shift + at));
                }
        }
}

}  // namespace

extern "C" void adaln_modulate(const float* x, const float* shift, const float* scale, float* output, int64_t batch,
                               int64_t tokens) {
    const bool aligned = (uintptr_t)output % (4 * WIDTH) == 0;
    if (STREAM && aligned) {
        modulate<true>(x, shift, scale, output, batch, tokens);
#if defined(__AVX512F__) || defined(__AVX2__)
        _mm_sfence();
#endif
    } else {
        modulate<false>(x, shift, scale, output, batch, tokens);
    }
}
