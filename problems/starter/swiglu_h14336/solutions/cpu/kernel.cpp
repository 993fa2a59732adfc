// silu(gate) * up on bfloat16, with the arithmetic in float and one rounding.
//
// WIDTH       floats in a vector
// UNROLL      vectors of input in flight
// STREAM      1: stores go around the caches, so that a line of the output is not read before it is written
// PREFETCH    bytes ahead that are asked for, 0 to leave it to the hardware
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

// exp(x) to about 1 ulp for -87 <= x <= 88, held at the ends outside. x = n ln 2 + r with |r| <= ln 2 / 2; the
// polynomial is Cephes' for exp(r), and ln 2 is taken off in two parts so that r is exact.
inline Floats exponential(Floats x) {
    const Floats low = Floats{} - 87.0f, high = Floats{} + 88.0f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    const Floats shifted = x * 1.44269504f + magic;
    const Floats n = shifted - magic;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    return p * (Floats)(((Words)shifted - (Words)magic + 127u) << 23);
}

inline Floats silu(Floats x) { return x / (1.0f + exponential(-x)); }

template <bool stream>
void gate_up(const uint16_t* gate, const uint16_t* up, uint16_t* output, int64_t elements) {
    constexpr int step = 2 * WIDTH;
    static_assert(AXIS_intermediate % (step * UNROLL) == 0, "a row is a whole number of unrolled vectors");
    for (int64_t i = 0; i < elements; i += step * UNROLL)
#pragma GCC unroll 8
        for (int u = 0; u < UNROLL; ++u) {
            const int64_t at = i + u * step;
            if (PREFETCH) {
                __builtin_prefetch((const char*)(gate + at) + PREFETCH);
                __builtin_prefetch((const char*)(up + at) + PREFETCH);
            }
            const Words g = load(gate + at), v = load(up + at);
            store<stream>(output + at, pack(silu(even(g)) * even(v), silu(odd(g)) * odd(v)));
        }
}

}  // namespace

extern "C" void swiglu(const uint16_t* gate, const uint16_t* up, uint16_t* output, int64_t rows) {
    const bool aligned = (uintptr_t)output % (4 * WIDTH) == 0;
    if (STREAM && aligned) {
        gate_up<true>(gate, up, output, rows * AXIS_intermediate);
#if defined(__AVX512F__) || defined(__AVX2__)
        _mm_sfence();
#endif
    } else {
        gate_up<false>(gate, up, output, rows * AXIS_intermediate);
    }
}
