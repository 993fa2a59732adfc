// RMS normalisation of bfloat16 rows, with the arithmetic in float.
//
// A row is read twice: once from memory for its sum of squares, once from the L1 cache to scale it. What decides the
// time is how well the reads of the next row overlap the work on this one, and whether a store first reads its line.
//
// WIDTH     floats in a vector
// UNROLL    vectors of running sums, to hide the latency of an addition
// STREAM    1: stores go around the caches, so that a line of the output is not read before it is written
// PREFETCH  how many rows ahead the second pass asks for, 0 to leave it to the hardware
#include <cmath>
#include <cstdint>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

typedef float Floats __attribute__((vector_size(4 * WIDTH), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH), may_alias));
typedef uint32_t LooseWords __attribute__((vector_size(4 * WIDTH), may_alias, aligned(2)));

// A word holds two bfloat16: the even element in its low half. A bfloat16 is the upper half of a float.
inline Floats even(Words pair) { return (Floats)(pair << 16); }
inline Floats odd(Words pair) { return (Floats)(pair & 0xffff0000u); }

// Rounds to nearest, ties to even; a NaN stays one.
inline Words rounded(Floats value) {
    Words bits = (Words)value;
    Words up = bits + 0x7fffu + ((bits >> 16) & 1u);
    return value == value ? up : (bits | 0x400000u);
}

inline Words pack(Floats low, Floats high) { return (rounded(low) >> 16) | (rounded(high) & 0xffff0000u); }

inline Words load(const uint16_t* from) { return *(const LooseWords*)from; }

template <bool stream>
inline void store(uint16_t* to, Words value) {
    if (stream) {
#if defined(__AVX512F__) && WIDTH == 16
        return _mm512_stream_si512((__m512i*)to, (__m512i)value);
#elif defined(__AVX2__) && WIDTH == 8
        return _mm256_stream_si256((__m256i*)to, (__m256i)value);
#endif
    }
    *(LooseWords*)to = value;
}

template <bool stream>
void normalise(const uint16_t* input, const uint16_t* weight, uint16_t* output, int64_t rows) {
    constexpr int step = 2 * WIDTH;
    static_assert(AXIS_hidden % (step * UNROLL) == 0, "a row is a whole number of unrolled vectors");
    for (int64_t row = 0; row < rows; ++row, input += AXIS_hidden, output += AXIS_hidden) {
        Floats sums[UNROLL] = {};
        for (int i = 0; i < AXIS_hidden; i += step * UNROLL)
            for (int u = 0; u < UNROLL; ++u) {
                Words pair = load(input + i + u * step);
                sums[u] += even(pair) * even(pair);
                sums[u] += odd(pair) * odd(pair);
            }
        for (int u = 1; u < UNROLL; ++u) sums[0] += sums[u];
        float total = 0;
        for (int lane = 0; lane < WIDTH; ++lane) total += sums[0][lane];
        const float rstd = 1.0f / std::sqrt(total / AXIS_hidden + 1e-5f);
        for (int i = 0; i < AXIS_hidden; i += step * UNROLL)
            for (int u = 0; u < UNROLL; ++u) {
                const int at = i + u * step;
                if (PREFETCH) __builtin_prefetch(input + at + PREFETCH * AXIS_hidden);
                Words pair = load(input + at), scale = load(weight + at);
                store<stream>(output + at, pack(even(pair) * rstd * even(scale), odd(pair) * rstd * odd(scale)));
            }
    }
}

}  // namespace

extern "C" void rmsnorm(const uint16_t* hidden_states, const uint16_t* weight, uint16_t* output, int64_t rows) {
    const bool aligned = (uintptr_t)output % (4 * WIDTH) == 0;
    if (STREAM && aligned) {
        normalise<true>(hidden_states, weight, output, rows);
#if defined(__AVX512F__) || defined(__AVX2__)
        _mm_sfence();
#endif
    } else {
        normalise<false>(hidden_states, weight, output, rows);
    }
}
