// Kernels of the trusted processes. They run between the calls of a candidate and are never part of a timed call.

// Fills a workspace with a 32-bit pattern.
extern "C" __global__ void fill(unsigned* to, unsigned long long words, unsigned pattern) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words; i += step) to[i] = pattern;
}

// Reads memory in 16-byte words, which displaces other lines from L2 and causes dirty lines to be written back.
extern "C" __global__ void read(const uint4* from, unsigned long long words, unsigned long long* sink) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words; i += step) {
        const uint4 word = __ldcg(from + i);
        sum |= word.x | word.y | word.z | word.w;
    }
    if (sum) *sink = sum;  // never happens, because the memory is zero; it prevents the compiler from removing the reads
}

// Holds the queue until the host has filled it (*go reaches the ticket), or until `limit` nanoseconds have passed.
extern "C" __global__ void hold(volatile const unsigned* go, unsigned ticket, unsigned long long limit) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while ((int)(*go - ticket) < 0 && now - start < limit);
}

// Runs for a given number of cycles of the SM's clock and stores its duration in cycles.
extern "C" __global__ void spin(long long cycles, long long* elapsed) {
    const long long start = clock64();
    long long now;
    do now = clock64();
    while (now - start < cycles);
    *elapsed = now - start;
}

__device__ float as_float(const void* from, unsigned long long i, int kind) {
    if (kind == 0) return ((const float*)from)[i];
    const unsigned short bits = ((const unsigned short*)from)[i];
    if (kind == 1) return __uint_as_float((unsigned)bits << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

struct Sums {
    double squared_error, squares;
    unsigned max_abs, max_rel;  // bits of non-negative floats, which compare like integers; NaN compares as the largest
    unsigned outside, nonzero;
};

// Compares an output with the expected output in one pass: harness/judge/correctness.py, `Sums`. kind: 0 float32, 1 bfloat16, 2 float16.
extern "C" __global__ void compare(const void* output, const void* expected, unsigned long long count, int kind, float atol, float rtol, float least, Sums* sums) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    double squared_error = 0, squares = 0;
    unsigned outside = 0, nonzero = 0, largest = 0, relative = 0;
    constexpr int PER_THREAD = 8;
    for (unsigned long long base = (blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x) * PER_THREAD; base < count; base += step * PER_THREAD) {
        float squared_errors = 0, squared_values = 0;
        float x[PER_THREAD], y[PER_THREAD];
        const int valid = count - base < PER_THREAD ? (int)(count - base) : PER_THREAD;
#pragma unroll
        for (int k = 0; k < PER_THREAD; ++k) {
            x[k] = k < valid ? as_float(output, base + k, kind) : 0.0f;
            y[k] = k < valid ? as_float(expected, base + k, kind) : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < PER_THREAD; ++k) {
            const float size = fabsf(y[k]), error = fabsf(__fsub_rn(x[k], y[k]));
            outside |= !(error <= __fadd_rn(__fmul_rn(size, rtol), atol));
            nonzero |= x[k] != 0.0f;
            largest = max(largest, __float_as_uint(error));
            relative = max(relative, __float_as_uint(error / fmaxf(size, least)));
            squared_errors += error * error;
            squared_values += size * size;
        }
        squared_error += squared_errors;
        squares += squared_values;
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
    unsigned long long count;  // elements, or bytes if kind is 3
    float factor;
    int kind;  // 0 to 2 as in compare, multiplied by the factor; 3 copied without conversion
};

template <typename T> __device__ void copy_words(const Piece& piece, unsigned long long begin, unsigned long long step) {
    for (unsigned long long i = begin; i < piece.count / sizeof(T); i += step) ((T*)piece.to)[i] = ((const T*)piece.from)[i];
}

// Copies many pieces in one launch, one piece per blockIdx.y: the inputs of a batch, which are slices of the pools of
// harness/judge/input_data/inputs.py.
extern "C" __global__ void batched_copy(const Piece* pieces) {
    const Piece piece = pieces[blockIdx.y];
    const unsigned long long begin = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x, step = (unsigned long long)gridDim.x * blockDim.x;
    if (piece.kind == 3) {
        const unsigned long long alignment_bits = (unsigned long long)piece.from | (unsigned long long)piece.to | piece.count;
        if (alignment_bits % 16 == 0) copy_words<uint4>(piece, begin, step);
        else if (alignment_bits % 4 == 0) copy_words<unsigned>(piece, begin, step);
        else copy_words<unsigned char>(piece, begin, step);
        return;
    }
    for (unsigned long long i = begin; i < piece.count; i += step) {
        const float value = __fmul_rn(as_float(piece.from, i, piece.kind), piece.factor);
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
