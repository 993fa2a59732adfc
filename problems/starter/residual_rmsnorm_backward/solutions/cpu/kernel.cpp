// Backward pass of RMS normalisation over the residual stream.
//
// Two sums of a row give both what normalised it and what its gradient loses: sum h^2 and sum grad * weight * h. Then
// the row's gradient and its share of the weight's gradient come from one more pass. ROWS rows go through that pass
// together, so that the weight's gradient is read and written once for all of them.
//
// WIDTH     floats in a vector
// UNROLL    vectors of running sums, to hide the latency of an addition
// ROWS      rows that go together
// STREAM    1: stores go around the caches, so that a line of the output is not read before it is written
// PREFETCH  1: the sums of these rows ask for their residual gradient, and the last pass for the rows that come next
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

// gradient of a row = rstd * grad * weight - correction * h + residual gradient
struct Factors {
    float rstd, correction;
};

inline Factors factors(const float* grad, const float* residual, const float* h, const float* weight, float eps) {
    Floats squares[UNROLL] = {}, products[UNROLL] = {};
    for (int i = 0; i < hidden; i += WIDTH * UNROLL)
        for (int u = 0; u < UNROLL; ++u) {
            const int at = i + u * WIDTH;
            if (PREFETCH) __builtin_prefetch(residual + at);
            const Floats state = load(h + at);
            squares[u] += state * state;
            products[u] += load(grad + at) * load(weight + at) * state;
        }
    const float rstd = 1.0f / std::sqrt(total(squares) / hidden + eps);
    return {rstd, rstd * rstd * rstd * (total(products) / hidden)};
}

template <bool stream, int rows>
inline void block(const float* grad, const float* residual, const float* h, const float* weight, float* output,
                  float* weight_gradient, float eps) {
    Factors each[rows];
    for (int r = 0; r < rows; ++r)
        each[r] = factors(grad + r * hidden, residual + r * hidden, h + r * hidden, weight, eps);
    for (int i = 0; i < hidden; i += WIDTH) {
        const Floats scale = load(weight + i);
        Floats sum = {};
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const int at = r * hidden + i;
            if (PREFETCH) {
                __builtin_prefetch(grad + rows * hidden + at);
                __builtin_prefetch(h + rows * hidden + at);
            }
            const Floats gradient = load(grad + at), state = load(h + at);
            sum += gradient * (state * each[r].rstd);
            store<stream>(output + at, gradient * scale * each[r].rstd - state * each[r].correction + load(residual + at));
        }
        *(LooseFloats*)(weight_gradient + i) += sum;
    }
}

template <bool stream>
void backward(const float* grad, const float* residual, const float* h, const float* weight, float eps, float* output,
              float* weight_gradient, int64_t rows) {
    for (int i = 0; i < hidden; ++i) weight_gradient[i] = 0;
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS) {
        const int64_t at = row * hidden;
        block<stream, ROWS>(grad + at, residual + at, h + at, weight, output + at, weight_gradient, eps);
    }
    for (; row < rows; ++row) {
        const int64_t at = row * hidden;
        block<stream, 1>(grad + at, residual + at, h + at, weight, output + at, weight_gradient, eps);
    }
}

}  // namespace

extern "C" void residual_rmsnorm_backward(const float* grad_output, const float* grad_residual,
                                          const float* hidden_states, const float* weight, double eps,
                                          float* grad_hidden_states, float* grad_weight, int64_t rows) {
    const bool aligned = (uintptr_t)grad_hidden_states % (4 * WIDTH) == 0;
    if (STREAM && aligned) {
        backward<true>(grad_output, grad_residual, hidden_states, weight, eps, grad_hidden_states, grad_weight, rows);
#if defined(__AVX512F__) || defined(__AVX2__)
        _mm_sfence();
#endif
    } else {
        backward<false>(grad_output, grad_residual, hidden_states, weight, eps, grad_hidden_states, grad_weight, rows);
    }
}
