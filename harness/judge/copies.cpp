// Copies of slices of pools of random values into inputs: unchanged, multiplied by a factor, or the sum of two slices
// that are each multiplied by a factor. The arithmetic is that of torch in float32, with one rounding to bfloat16.
#include <cstdint>
#include <cstring>

namespace {

constexpr uint64_t ALIGNED = 64;  // elements: two threads do not write to the same cache line

enum Kind : int32_t { BYTES, FLOAT32, BFLOAT16 };

// One copy; `harness.judge.native` packs it. BYTES has a factor of 1, and `elements` is its number of bytes.
struct Piece {
    const void *first, *second;  // second: nullptr if only one slice is copied
    void* target;
    uint64_t elements;
    float first_factor, second_factor;
    Kind kind;
};

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS float as_float(float value) { return value; }
ALWAYS float as_float(uint16_t bfloat) {
    const uint32_t bits = uint32_t(bfloat) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ALWAYS void store(float& target, float value) { target = value; }
ALWAYS void store(uint16_t& target, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    target = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even; there are no NaNs
}

template <class T>
ALWAYS void copy(const Piece& piece, uint64_t begin, uint64_t end) {
    const T *first = (const T*)piece.first, *second = (const T*)piece.second;
    T* __restrict target = (T*)piece.target;
    const float a = piece.first_factor, b = piece.second_factor;
    if (second)
        for (uint64_t at = begin; at < end; ++at)
            store(target[at], as_float(first[at]) * a + as_float(second[at]) * b);
    else
        for (uint64_t at = begin; at < end; ++at) store(target[at], as_float(first[at]) * a);
}

ALWAYS void copy_all(const Piece* pieces, uint64_t count, uint64_t part, uint64_t parts) {
    for (const Piece* piece = pieces; piece < pieces + count; ++piece) {
        const uint64_t share = (piece->elements / parts / ALIGNED + 1) * ALIGNED;
        const uint64_t begin = part * share < piece->elements ? part * share : piece->elements;
        const uint64_t end = part + 1 < parts && begin + share < piece->elements ? begin + share : piece->elements;
        if (piece->kind == BYTES)
            memcpy((char*)piece->target + begin, (const char*)piece->first + begin, end - begin);
        else if (piece->kind == FLOAT32)
            copy<float>(*piece, begin, end);
        else
            copy<uint16_t>(*piece, begin, end);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void copy_all_avx2(const Piece* pieces, uint64_t count, uint64_t part, uint64_t parts) {
    copy_all(pieces, count, part, parts);
}
#endif

}  // namespace

// Does one of `parts` equal parts of every copy.
extern "C" void copy_pieces(const Piece* pieces, uint64_t count, uint64_t part, uint64_t parts) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return copy_all_avx2(pieces, count, part, parts);
#endif
    copy_all(pieces, count, part, parts);
}
