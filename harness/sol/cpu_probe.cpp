// What one thread of this machine can do at best, printed as JSON: GB/s from memory and from the caches, GFLOP/s.
//
// Each figure is the fastest of many short repetitions: it goes into a bound, and a bound may not be beaten because a
// neighbour was busy while it was measured.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int width = 16;
#elif defined(__AVX2__)
constexpr int width = 8;
#else
constexpr int width = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * width), may_alias));
typedef double Doubles __attribute__((vector_size(4 * width), may_alias));

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// The fastest of repetitions of `work` for about `seconds`; `work` is run at least five times.
template <class Work>
double fastest(double seconds, Work work) {
    double best = 1e9;
    const double end = now() + seconds;
    for (int count = 0; count < 5 || now() < end; ++count) {
        const double start = now();
        work();
        const double took = now() - start;
        best = took < best ? took : best;
    }
    return best;
}

volatile float sink;

float read(const float* from, size_t floats) {
    Floats sums[8] = {};
    for (size_t i = 0; i < floats; i += 8 * width)
        for (int u = 0; u < 8; ++u) {
            __builtin_prefetch(from + i + u * width + 1024);
            sums[u] += *(const Floats*)(from + i + u * width);
        }
    for (int u = 1; u < 8; ++u) sums[0] += sums[u];
    return sums[0][0];
}

template <bool stream>
void copy(const float* from, float* to, size_t floats) {
    for (size_t i = 0; i < floats; i += 4 * width)
        for (int u = 0; u < 4; ++u) {
            const size_t at = i + u * width;
            __builtin_prefetch(from + at + 1024);
            const Floats value = *(const Floats*)(from + at);
#if defined(__AVX512F__)
            if (stream) {
                _mm512_stream_ps(to + at, (__m512)value);
                continue;
            }
#elif defined(__AVX2__)
            if (stream) {
                _mm256_stream_ps(to + at, (__m256)value);
                continue;
            }
#endif
            *(Floats*)(to + at) = value;
        }
#if defined(__AVX512F__) || defined(__AVX2__)
    if (stream) _mm_sfence();
#endif
}

// Twelve independent chains of multiply-adds: more than latency times throughput of any core yet.
template <class Scalar, class Vector>
double gigaflops(double seconds) {
    constexpr int chains = 12, rounds = 100000;
    const double took = fastest(seconds, [] {
        Vector values[chains], factor = Vector{} + (Scalar)0.999;
        for (int c = 0; c < chains; ++c) values[c] = Vector{} + (Scalar)c;
        for (int round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
            for (int c = 0; c < chains; ++c) values[c] = values[c] * factor + factor;
        }
        for (int c = 1; c < chains; ++c) values[0] += values[c];
        sink = (float)values[0][0];
    });
    return 2.0 * (sizeof(Vector) / sizeof(Scalar)) * chains * rounds / took / 1e9;
}

}  // namespace

// Usage: cpu_probe MEMORY_BYTES SECONDS. The bytes should be several times the last-level cache.
int main(int count, char** arguments) {
    if (count != 3) return 2;
#if defined(__linux__)
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    sched_setaffinity(0, sizeof here, &here);
#endif
    const size_t floats = std::strtoull(arguments[1], nullptr, 10) / 8 / 4096 * 4096;
    const double seconds = std::strtod(arguments[2], nullptr) / 7;
    float* from = (float*)std::aligned_alloc(4096, floats * sizeof(float));
    float* to = (float*)std::aligned_alloc(4096, floats * sizeof(float));
    if (!from || !to) return 3;
    for (size_t i = 0; i < floats; ++i) from[i] = to[i] = (float)(i % 1000);

    // Windows of 4 MB, the size of a call: the fastest window counts, and each comes round again only after all others.
    const size_t window = 1 << 20, windows = floats / window;
    size_t next = 0;
    const auto step = [&] { return (next++ % windows) * window; };
    const double whole = (double)window * sizeof(float);
    const double read_gbs = whole / fastest(seconds, [&] { sink = read(from + step(), window); }) / 1e9;
    const auto copied = [&](auto copying) {
        return 2 * whole / fastest(seconds, [&] { size_t at = step(); copying(from + at, to + at, window); }) / 1e9;
    };
    const double copy_gbs = copied(copy<false>), stream_gbs = copied(copy<true>);

    const size_t small = 32768;  // 128 KiB: beyond the L1 cache, within the L2
    const double cached_read_gbs =
        100.0 * small * 4 / fastest(seconds, [&] { for (int i = 0; i < 100; ++i) sink = read(from, small); }) / 1e9;
    const double cached_copy_gbs =
        200.0 * small * 4 / fastest(seconds, [&] { for (int i = 0; i < 100; ++i) copy<false>(from, to, small); }) / 1e9;
    const double float32_gflops = gigaflops<float, Floats>(seconds);
    const double float64_gflops = gigaflops<double, Doubles>(seconds);
    std::printf(
        "{\"read_gbs\": %.3f, \"copy_gbs\": %.3f, \"stream_gbs\": %.3f, \"cached_read_gbs\": %.3f, "
        "\"cached_copy_gbs\": %.3f, \"float32_gflops\": %.3f, \"float64_gflops\": %.3f}\n",
        read_gbs, copy_gbs, stream_gbs, cached_read_gbs, cached_copy_gbs, float32_gflops, float64_gflops);
    std::free(from);
    std::free(to);
    return 0;
}
