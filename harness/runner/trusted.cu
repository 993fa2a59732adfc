// The trusted side's own kernels: they run between a candidate's calls and are never part of what is timed.

// Fills with one 32-bit pattern: workspaces.
extern "C" __global__ void fill(unsigned* to, unsigned long long words, unsigned pattern) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words; i += step) to[i] = pattern;
}

// Reads memory, which displaces everything else from L2 and has dirty lines written back. 16-byte words.
extern "C" __global__ void read(const uint4* from, unsigned long long words, unsigned long long* sink) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words; i += step) {
        const uint4 word = __ldcg(from + i);
        sum |= word.x | word.y | word.z | word.w;
    }
    if (sum) *sink = sum;  // never: the memory is zero, which the compiler does not know
}

// Keeps the queue from running until the host has filled it (its ticket is reached), or `limit` nanoseconds have gone by.
extern "C" __global__ void hold(volatile const unsigned* go, unsigned wanted, unsigned long long limit) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while ((int)(*go - wanted) < 0 && now - start < limit);
}

// Runs for a known number of cycles of the SM's clock and reports what it took, in cycles.
extern "C" __global__ void known(long long cycles, long long* took) {
    const long long start = clock64();
    long long now;
    do now = clock64();
    while (now - start < cycles);
    *took = now - start;
}

__device__ float widened(const void* from, unsigned long long i, int kind) {
    if (kind == 0) return ((const float*)from)[i];
    const unsigned short bits = ((const unsigned short*)from)[i];
    if (kind == 1) return __uint_as_float((unsigned)bits << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

struct Sums {
    double squared_error, squares;
    unsigned max_abs, max_rel;  // bits of floats that are not negative: they compare as integers, and NaN above all
    unsigned outside, nonzero;
};

// One pass over an output and the expected one: harness/judge/correctness.py, `Sums`. kind: 0 float32, 1 bfloat16, 2 float16.
extern "C" __global__ void compare(const void* found, const void* right, unsigned long long count, int kind, float atol, float rtol, float least, Sums* sums) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    double squared_error = 0, squares = 0;
    unsigned outside = 0, nonzero = 0, largest = 0, relative = 0;
    constexpr int EACH = 8;
    for (unsigned long long base = (blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x) * EACH; base < count; base += step * EACH) {
        float errors = 0, wholes = 0;
        float x[EACH], y[EACH];
        const int here = count - base < EACH ? (int)(count - base) : EACH;
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            x[k] = k < here ? widened(found, base + k, kind) : 0.0f;
            y[k] = k < here ? widened(right, base + k, kind) : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const float size = fabsf(y[k]), error = fabsf(__fsub_rn(x[k], y[k]));
            outside |= !(error <= __fadd_rn(__fmul_rn(size, rtol), atol));
            nonzero |= x[k] != 0.0f;
            largest = max(largest, __float_as_uint(error));
            relative = max(relative, __float_as_uint(error / fmaxf(size, least)));
            errors += error * error;
            wholes += size * size;
        }
        squared_error += errors;
        squares += wholes;
    }
    for (int lane = 16; lane; lane >>= 1) {
        squared_error += __shfl_xor_sync(~0u, squared_error, lane);
        squares += __shfl_xor_sync(~0u, squares, lane);
        largest = max(largest, __shfl_xor_sync(~0u, largest, lane));
        relative = max(relative, __shfl_xor_sync(~0u, relative, lane));
        outside |= __shfl_xor_sync(~0u, outside, lane);
        nonzero |= __shfl_xor_sync(~0u, nonzero, lane);
    }
    if (threadIdx.x % 32) return;
    atomicAdd(&sums->squared_error, squared_error);
    atomicAdd(&sums->squares, squares);
    atomicMax(&sums->max_abs, largest);
    atomicMax(&sums->max_rel, relative);
    if (outside) atomicOr(&sums->outside, 1u);
    if (nonzero) atomicOr(&sums->nonzero, 1u);
}

struct Piece {
    const void* from;
    void* to;
    unsigned long long count;  // of elements; of bytes for what is copied as it is
    float factor;
    int kind;  // as above, multiplied by the factor; 3 as it is
};

template <typename T> __device__ void copied(const Piece& piece, unsigned long long begin, unsigned long long step) {
    for (unsigned long long i = begin; i < piece.count / sizeof(T); i += step) ((T*)piece.to)[i] = ((const T*)piece.from)[i];
}

// Copies many pieces at once, one to each blockIdx.y: the inputs of a whole batch, slices of harness/judge/input_data/inputs.py's pools.
extern "C" __global__ void pieces(const Piece* all) {
    const Piece piece = all[blockIdx.y];
    const unsigned long long begin = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x, step = (unsigned long long)gridDim.x * blockDim.x;
    if (piece.kind == 3) {
        const unsigned long long odd = (unsigned long long)piece.from | (unsigned long long)piece.to | piece.count;
        if (odd % 16 == 0) copied<uint4>(piece, begin, step);
        else if (odd % 4 == 0) copied<unsigned>(piece, begin, step);
        else copied<unsigned char>(piece, begin, step);
        return;
    }
    for (unsigned long long i = begin; i < piece.count; i += step) {
        const float value = __fmul_rn(widened(piece.from, i, piece.kind), piece.factor);
        unsigned short bits;
        if (piece.kind == 0) {
            ((float*)piece.to)[i] = value;
            continue;
        }
        if (piece.kind == 1) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        ((unsigned short*)piece.to)[i] = bits;
    }
}
