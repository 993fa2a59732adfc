// CUDA threads emulated by host threads: what the documentation's pieces of device code need to run where there is no GPU.
//
// A block is run by one host thread per CUDA thread. Shuffles, votes and barriers synchronise the threads of a warp or block, so
// that wrong participation hangs or gives wrong numbers as on a GPU. Blocks run one after another, in the order of the calls.
// Types have the layout of CUDA's; bf16 conversions round to nearest even.
#pragma once
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __restrict__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // one block at a time: the static variable is the block's

using std::max;
using std::min;

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline float __expf(float v) { return std::exp(v); }
inline float exp2f_host(float v) { return std::exp2(v); }
#define exp2f exp2f_host

inline float from_bf16(uint16_t v) { return __uint_as_float(unsigned(v) << 16); }
inline uint16_t to_bf16(float v) {
    const unsigned bits = __float_as_uint(v);
    return v != v ? 0x7fff : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { uint16_t low, high; };
inline __nv_bfloat16 __float2bfloat16(float v) { return {to_bf16(v)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {to_bf16(low), to_bf16(high)}; }
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return {to_bf16(from_bf16(a.low) * from_bf16(b.low) + from_bf16(c.low)),
            to_bf16(from_bf16(a.high) * from_bf16(b.high) + from_bf16(c.high))};
}

template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcg(T* p, T v) { *p = v; }
template <class T> void __stcs(T* p, T v) { *p = v; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t both = uint64_t(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) out |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}

struct Index { int x = 0, y = 0, z = 0; };
inline thread_local Index threadIdx, blockIdx;
inline Index gridDim;
struct WarpState {
    std::barrier<> barrier{32};
    uint64_t value[32];
    unsigned fragment[6][32];  // operands of a product, by register and lane
};
inline std::vector<std::unique_ptr<WarpState>> warps;
inline std::unique_ptr<std::barrier<>> block_barrier;
inline std::mutex memory_lock;

inline WarpState& my_warp() { return *warps[threadIdx.x / 32]; }
inline int lane_index() { return threadIdx.x % 32; }
// The result of `combine` over the values of all lanes, in every lane.
template <class Combine>
auto collective(uint64_t mine, Combine combine) {
    WarpState& warp = my_warp();
    warp.value[lane_index()] = mine;
    warp.barrier.arrive_and_wait();
    const auto result = combine(warp.value);
    warp.barrier.arrive_and_wait();
    return result;
}
template <class T>
T from_lane(T mine, int lane) {
    uint64_t bits = 0;
    std::memcpy(&bits, &mine, sizeof mine);
    bits = collective(bits, [lane](const uint64_t* value) { return value[lane & 31]; });
    std::memcpy(&mine, &bits, sizeof mine);
    return mine;
}
template <class T> T __shfl_sync(unsigned, T v, int lane) { return from_lane(v, lane); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) { return from_lane(v, lane_index() ^ mask); }
template <class T> T __shfl_up_sync(unsigned, T v, int by) { return from_lane(v, max(lane_index() - by, lane_index() < by ? lane_index() : 0)); }
inline unsigned __match_any_sync(unsigned, int key) {
    return collective(unsigned(key), [key](const uint64_t* value) {
        unsigned mask = 0;
        for (int lane = 0; lane < 32; ++lane) mask |= unsigned(value[lane] == unsigned(key)) << lane;
        return mask;
    });
}
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
    return unsigned(collective(v, [](const uint64_t* value) { return *std::max_element(value, value + 32); }));
}
inline int __reduce_min_sync(unsigned, int v) {
    return int(collective(unsigned(v), [](const uint64_t* value) { return *std::min_element(value, value + 32); }));
}
inline void __syncwarp() { my_warp().barrier.arrive_and_wait(); }
inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
template <class T>
T atomicAdd(T* p, T v) {
    const std::lock_guard<std::mutex> held(memory_lock);
    const T before = *p;
    *p += v;
    return before;
}

inline void run_block(int threads, Index block, const std::function<void()>& kernel) {
    warps.clear();
    for (int warp = 0; warp < (threads + 31) / 32; ++warp) warps.push_back(std::make_unique<WarpState>());
    block_barrier = std::make_unique<std::barrier<>>(threads);
    std::vector<std::thread> running;
    for (int index = 0; index < threads; ++index)
        running.emplace_back([=] {
            threadIdx.x = index;
            blockIdx = block;
            kernel();
            (void)my_warp().barrier.arrive_and_drop();
            (void)block_barrier->arrive_and_drop();
        });
    for (std::thread& thread : running) thread.join();
}
