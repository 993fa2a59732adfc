// One pass over a candidate's output and the expected one: what harness/judge/correctness.py asks of two float tensors.
//
// The same float32 arithmetic as torch does there, element by element and unfused; only the sums are added up in another
// order. Every element is looked at: a NaN anywhere, or inf - inf, makes `within` false.
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 16;
constexpr uint64_t PIECE = 4096;  // elements whose squares are added in float32 before they go into a double

struct Found {
    double squared_error, squares;
    float max_abs, max_rel;
    int within, some_nonzero;
};

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS float as_float(float value) { return value; }
ALWAYS float as_float(uint16_t bfloat) {
    const uint32_t bits = uint32_t(bfloat) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
ALWAYS void take_in(const T* found, const T* right, uint64_t count, float atol, float rtol, float least, Found& all) {
    float max_abs[LANES] = {}, max_rel[LANES] = {};
    uint32_t beyond[LANES] = {}, nonzero[LANES] = {};
    for (uint64_t piece = 0; piece < count; piece += PIECE) {
        const uint64_t end = piece + PIECE < count ? piece + PIECE : count;
        float errors[LANES] = {}, squares[LANES] = {};
        const auto one = [&](uint64_t at, int lane) __attribute__((always_inline)) {
            const float x = as_float(found[at]), y = as_float(right[at]);
            const float size = std::fabs(y), error = std::fabs(x - y);
            const float bound = size * rtol + atol, relative = error / (size > least ? size : least);
            nonzero[lane] |= x != 0.0f;
            beyond[lane] |= !(error - bound <= 0.0f);
            max_abs[lane] = error > max_abs[lane] ? error : max_abs[lane];
            max_rel[lane] = relative > max_rel[lane] ? relative : max_rel[lane];
            errors[lane] += error * error;
            squares[lane] += size * size;
        };
        uint64_t at = piece;
        for (; at + LANES <= end; at += LANES)
            for (int lane = 0; lane < LANES; ++lane) one(at + lane, lane);
        for (int lane = 0; at < end; ++at, ++lane) one(at, lane);
        for (int lane = 0; lane < LANES; ++lane) {
            all.squared_error += errors[lane];
            all.squares += squares[lane];
        }
    }
    for (int lane = 0; lane < LANES; ++lane) {
        all.max_abs = max_abs[lane] > all.max_abs ? max_abs[lane] : all.max_abs;
        all.max_rel = max_rel[lane] > all.max_rel ? max_rel[lane] : all.max_rel;
        all.within &= !beyond[lane];
        all.some_nonzero |= nonzero[lane] != 0;
    }
}

ALWAYS void take_in_any(const void* found, const void* right, uint64_t count, int bfloat, float atol, float rtol,
                        float least, Found& all) {
    if (bfloat)
        take_in((const uint16_t*)found, (const uint16_t*)right, count, atol, rtol, least, all);
    else
        take_in((const float*)found, (const float*)right, count, atol, rtol, least, all);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void take_in_avx2(const void* found, const void* right, uint64_t count, int bfloat,
                                                  float atol, float rtol, float least, Found& all) {
    take_in_any(found, right, count, bfloat, atol, rtol, least, all);
}
#endif

}  // namespace

extern "C" void compare(const void* found, const void* right, uint64_t count, int bfloat, float atol, float rtol,
                        float least, Found* all) {
    *all = {0.0, 0.0, 0.0f, 0.0f, 1, 0};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return take_in_avx2(found, right, count, bfloat, atol, rtol, least, *all);
#endif
    take_in_any(found, right, count, bfloat, atol, rtol, least, *all);
}
