// Depthwise causal convolution of width 4 with bias and SiLU, channels first.
//
// Channels lie one after another, `length` floats each, so that only their first three positions need care: a vector
// there starts before the channel. Results gather in a tile in the L1 cache, since a channel's first float rarely starts
// a cache line, and leave it line by line.
//
// WIDTH       floats in a vector
// TILE        floats that gather before they are written out
// STREAM      1: tiles are written around the caches, so that a line of the output is not read before it is written
// PREFETCH    bytes ahead that are asked for, 0 to leave it to the hardware
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

typedef float Floats __attribute__((vector_size(4 * WIDTH), may_alias));
typedef float LooseFloats __attribute__((vector_size(4 * WIDTH), may_alias, aligned(4)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH), may_alias));

constexpr int before = AXIS_width - 1;
static_assert(AXIS_width == 4, "the filter's taps are written out");

inline Floats load(const float* from) { return *(const LooseFloats*)from; }
inline void store(float* to, Floats value) { *(LooseFloats*)to = value; }

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

// The floats that lie `back` before x and after it; where a channel starts at x, zeros stand for what lies before it.
template <bool start>
inline Floats shifted(const float* x, int back) {
    Floats values = load(x - back);
    if (!start) return values;
    Words lanes;
    for (int lane = 0; lane < WIDTH; ++lane) lanes[lane] = lane;
    return (Floats)((Words)values & (Words)(lanes >= (uint32_t)back));
}

// WIDTH results, the first at x.
template <bool start>
inline Floats convolve(const float* x, const float* taps, float bias) {
    return silu(bias + shifted<start>(x, 3) * taps[0] + shifted<start>(x, 2) * taps[1] + shifted<start>(x, 1) * taps[2] +
                load(x) * taps[3]);
}

// What a vector of the input may touch.
struct Bounds {
    const float *first, *last;
};

// `count` positions of one channel from x on, into `to`, which may be written up to WIDTH - 1 floats past them.
inline void positions(const float* x, float* to, int64_t count, bool start, Bounds bounds, const float* taps, float bias) {
    for (int64_t at = 0; at < count; at += WIDTH, start = false) {
        const float* from = x + at;
        if (from - before < bounds.first || from + WIDTH > bounds.last) {
            float padded[before + WIDTH] = {};
            const int64_t past = start ? 0 : before, left = count - at < WIDTH ? count - at : WIDTH;
            std::memcpy(padded + before - past, from - past, (past + left) * sizeof(float));
            store(to + at, convolve<false>(padded + before, taps, bias));
        } else if (start) {
            store(to + at, convolve<true>(from, taps, bias));
        } else {
            store(to + at, convolve<false>(from, taps, bias));
        }
    }
}

// Gathers floats in order and writes them out in whole cache lines.
class Tile {
   public:
    explicit Tile(float* output) : output_(output), used_(0) {}

    // Room for `floats` at the end of what is there, and WIDTH more.
    float* room(int64_t floats) {
        if (used_ + floats > TILE) flush();
        return floats_ + used_;
    }
    void take(int64_t floats) { used_ += floats; }

    // Leaves less than a line behind, except at the end.
    void flush(bool last = false) {
        int64_t whole = 0;
        if ((uintptr_t)output_ % 64) {
            whole = (64 - (uintptr_t)output_ % 64) / sizeof(float);
            whole = whole < used_ ? whole : used_;
            std::memcpy(output_, floats_, whole * sizeof(float));
        }
        for (; whole + 16 <= used_; whole += 16) line(output_ + whole, floats_ + whole);
        if (last) {
            std::memcpy(output_ + whole, floats_ + whole, (used_ - whole) * sizeof(float));
            whole = used_;
        }
        output_ += whole;
        used_ -= whole;
        std::memmove(floats_, floats_ + whole, used_ * sizeof(float));
    }

   private:
    static void line(float* to, const float* from) {
#if STREAM && defined(__AVX512F__)
        _mm512_stream_ps(to, _mm512_loadu_ps(from));
#elif STREAM && defined(__AVX2__)
        _mm256_stream_ps(to, _mm256_loadu_ps(from));
        _mm256_stream_ps(to + 8, _mm256_loadu_ps(from + 8));
#else
        std::memcpy(to, from, 64);
#endif
    }

    float* output_;
    int64_t used_;
    alignas(64) float floats_[TILE + 2 * 16];
};

}  // namespace

extern "C" void causal_conv1d_silu(const float* x, const float* weight, const float* bias, float* output, int64_t batch,
                                   int64_t length) {
    Tile tile(output);
    const Bounds bounds = {x, x + batch * AXIS_channels * length};
    for (int64_t row = 0; row < batch * AXIS_channels; ++row, x += length) {
        const int64_t c = row % AXIS_channels;
        for (int64_t byte = 0; PREFETCH && byte < length * 4; byte += 64)
            __builtin_prefetch((const char*)x + byte + PREFETCH);
        for (int64_t done = 0; done < length; done += TILE) {
            const int64_t count = length - done < TILE ? length - done : TILE;
            positions(x + done, tile.room(count), count, done == 0, bounds, weight + c * AXIS_width, bias[c]);
            tile.take(count);
        }
    }
    tile.flush(true);
#if STREAM && (defined(__AVX512F__) || defined(__AVX2__))
    _mm_sfence();
#endif
}
