// What the examples need of Hopper's asynchronous hardware, emulated: mbarriers, tensor copies with the 128-byte swizzle, warpgroup
// products that read shared memory through their descriptors, and mma.m16n8k16.
//
// Operations complete when they are issued. Descriptors, swizzle, fragment layouts, byte counts and parities are those of the PTX
// ISA: a wrong one gives wrong numbers, an abort or a wait that exceeds its deadline.
#pragma once
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "simt.h"

alignas(1024) inline unsigned char shared_memory[232448];
inline unsigned shared_address(const void* p) { return unsigned(static_cast<const unsigned char*>(p) - shared_memory); }

[[noreturn]] inline void fail(const char* reason, unsigned where) {
    std::fprintf(stderr, "%s at %u, thread %d of block (%d, %d)\n", reason, where, threadIdx.x, blockIdx.x, blockIdx.y);
    std::exit(3);
}

struct Barrier {
    int arrivals = 0, pending = 0, parity = 0;
    long bytes = 0;
};
inline std::map<unsigned, Barrier> barriers;
inline std::mutex barrier_lock;
inline std::condition_variable barrier_changed;

inline void barrier_init(unsigned at, int arrivals) {
    const std::lock_guard<std::mutex> held(barrier_lock);
    barriers[at] = {arrivals, arrivals};
}
inline void barrier_change(unsigned at, int arrivals, long bytes) {
    const std::lock_guard<std::mutex> held(barrier_lock);
    Barrier& barrier = barriers.at(at);
    if (barrier.pending < arrivals) fail("more arrivals than the barrier expects", at);
    barrier.pending -= arrivals;
    barrier.bytes += bytes;
    if (barrier.pending || barrier.bytes) return;
    barrier.parity ^= 1;
    barrier.pending = barrier.arrivals;
    barrier_changed.notify_all();
}
inline void barrier_arrive(unsigned at) { barrier_change(at, 1, 0); }
inline void barrier_expect(unsigned at, long bytes) { barrier_change(at, 1, bytes); }
inline void barrier_complete(unsigned at, long bytes) { barrier_change(at, 0, -bytes); }
inline void barrier_wait(unsigned at, unsigned parity) {
    std::unique_lock<std::mutex> held(barrier_lock);
    if (!barrier_changed.wait_for(held, std::chrono::minutes(2), [&] { return barriers.at(at).parity != int(parity); }))
        fail("a wait for a barrier did not end", at);
}

inline std::map<int, std::unique_ptr<std::barrier<>>> group_barriers;  // by named barrier
inline std::unique_ptr<std::barrier<>> warpgroup_barriers[4];
inline void named_barrier(int name) { group_barriers.at(name)->arrive_and_wait(); }
inline void wait_for_products() { warpgroup_barriers[threadIdx.x / 128]->arrive_and_wait(); }

// A bf16 tensor [slices][rows][columns] whose boxes are 64 columns of `box_rows` rows, swizzled by 128 bytes.
struct TmaTensor {
    uint16_t* data;
    long columns, rows, slices;
    int box_rows;
};
inline unsigned swizzled(unsigned at) { return at ^ (at >> 7 & 7) << 4; }
inline void tma_load(unsigned to, const TmaTensor& map, long column, long row, long slice, unsigned barrier) {
    if (to % 1024) fail("a swizzled tile does not start on 1,024 bytes", to);
    for (int r = 0; r < map.box_rows; ++r)
        for (int c = 0; c < 64; ++c) {
            const bool inside = row + r < map.rows && column + c < map.columns;
            const uint16_t value = inside ? map.data[(slice * map.rows + row + r) * map.columns + column + c] : 0;
            std::memcpy(shared_memory + swizzled(to + r * 128 + c * 2), &value, 2);
        }
    barrier_complete(barrier, map.box_rows * 128);
}
inline void tma_store(const TmaTensor& map, long column, long row, long slice, unsigned from) {
    if (from % 1024) fail("a swizzled tile does not start on 1,024 bytes", from);
    for (int r = 0; r < map.box_rows; ++r)
        for (int c = 0; c < 64; ++c)
            if (row + r < map.rows && column + c < map.columns)
                std::memcpy(map.data + (slice * map.rows + row + r) * map.columns + column + c, shared_memory + swizzled(from + r * 128 + c * 2), 2);
}

// Element (i, k) of an operand in shared memory, i along M or N. Source: PTX ISA, wgmma; CUTLASS's canonical layouts.
inline float element(unsigned long long descriptor, bool mn_major, int i, int k) {
    const unsigned start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1) fail("not a descriptor with swizzle 128B", start);
    const unsigned at = mn_major ? start + i / 64 * leading + k / 8 * stride + k % 8 * 128 + i % 64 * 2 : start + i / 8 * stride + i % 8 * 128 + k * 2;
    uint16_t bits;
    std::memcpy(&bits, shared_memory + swizzled(at), 2);
    return from_bf16(bits);
}
// The thread's rows g and g + 8 of its warp's 16, times N columns. a[h][k]: row g + 8 h.
template <int N>
void warpgroup_rows(float* d, const float (&a)[2][16], unsigned long long b, bool b_mn_major, bool add) {
    for (int j = 0; j < N / 8; ++j)
        for (int i = 0; i < 2; ++i)
            for (int h = 0; h < 2; ++h) {
                float& sum = d[4 * j + 2 * h + i];
                if (!add) sum = 0;
                for (int k = 0; k < 16; ++k) sum += a[h][k] * element(b, b_mn_major, 8 * j + threadIdx.x % 4 * 2 + i, k);
            }
}
template <int N>
void wgmma(float* d, unsigned long long a, unsigned long long b, bool add) {  // both K-major in shared memory
    float row[2][16];
    for (int h = 0; h < 2; ++h)
        for (int k = 0; k < 16; ++k) row[h][k] = element(a, false, threadIdx.x % 128 / 32 * 16 + lane_index() / 4 + 8 * h, k);
    warpgroup_rows<N>(d, row, b, false, add);
}
inline float half_of(unsigned pair, int index) { return from_bf16(uint16_t(index ? pair >> 16 : pair)); }
// The warp's fragments, and rows g and g + 8 of A in the m16n8k16 layout. The caller waits for the warp after its last use.
inline const unsigned (*publish(const unsigned* a, unsigned b0, unsigned b1))[32] {
    WarpState& warp = my_warp();
    const unsigned own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (int q = 0; q < 6; ++q) warp.fragment[q][lane_index()] = own[q];
    warp.barrier.arrive_and_wait();
    return warp.fragment;
}
inline void rows_of(float (&row)[2][16], const unsigned (*fragment)[32]) {
    for (int q = 0; q < 4; ++q)
        for (int k = 0; k < 8; ++k) row[q % 2][q / 2 * 8 + k] = half_of(fragment[q][lane_index() / 4 * 4 + k / 2], k % 2);
}
template <int N>
void wgmma_registers(float* d, const unsigned* a, unsigned long long b) {  // A in registers, B MN-major
    float row[2][16];
    rows_of(row, publish(a, 0, 0));
    __syncwarp();
    warpgroup_rows<N>(d, row, b, true, true);
}
inline void mma_m16n8k16(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    float row[2][16];
    const unsigned (*fragment)[32] = publish(a, b0, b1);
    rows_of(row, fragment);
    for (int i = 0; i < 2; ++i)
        for (int k = 0; k < 16; ++k) {
            const float b = half_of(fragment[4 + k / 8][(lane_index() % 4 * 2 + i) * 4 + k % 8 / 2], k % 2);
            for (int low = 0; low < 2; ++low) d[2 * low + i] += row[low][k] * b;
        }
    __syncwarp();
}

inline void run_hopper_block(int threads, Index block, const std::function<void()>& kernel) {
    barriers.clear();
    std::memset(shared_memory, 0x7f, sizeof shared_memory);  // bf16 NaN: what is read before it is written shows
    for (int group = 0; group < 4; ++group) warpgroup_barriers[group] = std::make_unique<std::barrier<>>(128);
    for (int name = 1; name < 4; ++name) group_barriers[name] = std::make_unique<std::barrier<>>(128);
    run_block(threads, block, kernel);
}
