// Rotary position embedding: a token's cosines and sines stay in registers while its 40 heads pass by.
//
// WIDTH     floats in a vector
// UNROLL    heads in flight
// STREAM    1: stores go around the caches, so that a line of the output is not read before it is written
// PREFETCH  bytes ahead that are asked for, 0 to leave it to the hardware
#include <cstdint>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

typedef float Floats __attribute__((vector_size(4 * WIDTH), may_alias));
typedef float LooseFloats __attribute__((vector_size(4 * WIDTH), may_alias, aligned(4)));

constexpr int half = AXIS_head_dim / 2;
constexpr int vectors = half / WIDTH;
constexpr int unroll = UNROLL;  // a pragma does not see through the macro
static_assert(half % WIDTH == 0, "half a head is a whole number of vectors");

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

template <bool stream>
inline void rotate(const float* input, float* output, int heads, const Floats* cosines, const Floats* sines) {
#pragma GCC unroll unroll
    for (int head = 0; head < heads; ++head, input += AXIS_head_dim, output += AXIS_head_dim) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            if (PREFETCH) {
                __builtin_prefetch((const char*)(input + v * WIDTH) + PREFETCH);
                __builtin_prefetch((const char*)(input + half + v * WIDTH) + PREFETCH);
            }
            const Floats first = load(input + v * WIDTH), second = load(input + half + v * WIDTH);
            store<stream>(output + v * WIDTH, first * cosines[v] - second * sines[v]);
            store<stream>(output + half + v * WIDTH, second * cosines[v] + first * sines[v]);
        }
    }
}

template <bool stream>
void rotate_all(const float* q, const float* k, const float* cos, const float* sin, float* q_out, float* k_out,
                int64_t tokens) {
    for (int64_t token = 0; token < tokens; ++token, cos += half, sin += half) {
        Floats cosines[vectors], sines[vectors];
        for (int v = 0; v < vectors; ++v) {
            cosines[v] = load(cos + v * WIDTH);
            sines[v] = load(sin + v * WIDTH);
        }
        constexpr int q_size = AXIS_q_heads * AXIS_head_dim, k_size = AXIS_kv_heads * AXIS_head_dim;
        rotate<stream>(q + token * q_size, q_out + token * q_size, AXIS_q_heads, cosines, sines);
        rotate<stream>(k + token * k_size, k_out + token * k_size, AXIS_kv_heads, cosines, sines);
    }
}

}  // namespace

extern "C" void rope(const float* q, const float* k, const float* cos, const float* sin, float* q_out, float* k_out,
                     int64_t tokens, int64_t /* half_dim */) {
    const bool aligned = ((uintptr_t)q_out | (uintptr_t)k_out) % (4 * WIDTH) == 0;
    if (STREAM && aligned) {
        rotate_all<true>(q, k, cos, sin, q_out, k_out, tokens);
#if defined(__AVX512F__) || defined(__AVX2__)
        _mm_sfence();
#endif
    } else {
        rotate_all<false>(q, k, cos, sin, q_out, k_out, tokens);
    }
}
