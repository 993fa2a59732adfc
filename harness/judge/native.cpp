// What the judge does to memory between batches and Python cannot: take lines out of every cache.
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

__attribute__((target("clflushopt"))) static void flush_fast(char* from, char* to) {
    for (char* line = from; line < to; line += 64) _mm_clflushopt(line);
    _mm_sfence();
}

extern "C" int flush(void* start, uint64_t bytes) {
    static int has = -1;
    if (has < 0) {
        unsigned a, b, c, d;
        has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 23));
    }
    char* from = (char*)((uintptr_t)start & ~uintptr_t(63));
    char* to = (char*)start + bytes;
    if (has) {
        flush_fast(from, to);
    } else {
        for (char* line = from; line < to; line += 64) _mm_clflush(line);
        _mm_mfence();
    }
    return 0;
}
#elif defined(__aarch64__)
extern "C" int flush(void* start, uint64_t bytes) {
    uint64_t type;
    asm volatile("mrs %0, ctr_el0" : "=r"(type));
    const uint64_t line = 4ull << ((type >> 16) & 15);
    for (uintptr_t at = (uintptr_t)start & ~(line - 1); at < (uintptr_t)start + bytes; at += line)
        asm volatile("dc civac, %0" ::"r"(at) : "memory");
    asm volatile("dsb sy" ::: "memory");
    return 0;
}
#else
extern "C" int flush(void*, uint64_t) { return 1; }
#endif
