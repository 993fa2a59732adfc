// Kernels of the protocol study: the judge's, the honest workload and the adversaries'. Inputs and outputs are floats.
#define POISON 0xFFFFFFFFu

__device__ __forceinline__ float value(unsigned seed, unsigned i) {
    unsigned x = i * 2654435761u ^ seed;
    x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; x ^= x >> 16;
    return 0.5f + (float)(x >> 8) * (1.0f / 16777216.0f);
}

__device__ __forceinline__ float compute(float x, int rounds) {
    float y = x;
    for (int r = 0; r < rounds; ++r) y = fmaf(y, 0.999f, x * 1e-3f);
    return y;
}

__device__ __forceinline__ unsigned long long global_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// ---- the judge's ----------------------------------------------------------------------------------------------------

extern "C" __global__ void fill(float* in, int n, unsigned seed) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) in[i] = value(seed, i);
}

extern "C" __global__ void poison(unsigned* out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = POISON;
}

// Displaces L2 by reading: stores would leave dirty lines whose write-back falls into the timed call.
extern "C" __global__ void read_all(const float4* data, int n, float* sink) {
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 v = __ldcg(data + i);
        sum += v.x + v.y + v.z + v.w;
    }
    if (sum == 1.2345f) *sink = sum;
}

extern "C" __global__ void copy_words(unsigned* to, const unsigned* from, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i];
}

extern "C" __global__ void known(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}

// Counts outputs that are not what the inputs of this seed give. The arithmetic is that of `work`, so bits agree.
extern "C" __global__ void check(const float* out, int n, int rounds, unsigned seed, int* wrong) {
    int bad = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        bad += __float_as_uint(out[i]) != __float_as_uint(compute(value(seed, i), rounds));
    if (bad) atomicAdd(wrong, bad);
}

extern "C" __global__ void check_inputs(const float* in, int n, unsigned seed, int* changed) {
    int bad = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        bad += __float_as_uint(__ldcg(in + i)) != __float_as_uint(value(seed, i));
    if (bad) atomicAdd(changed, bad);
}

// ---- the workload ---------------------------------------------------------------------------------------------------

extern "C" __global__ void empty() {}

extern "C" __global__ void work(const float* in, float* out, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = compute(in[i], rounds);
}

// ---- the adversaries' -----------------------------------------------------------------------------------------------

// A whole batch in one launch: sets are `stride` bytes apart, one per blockIdx.y.
extern "C" __global__ void work_all(const char* in, char* out, long long stride, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float* from = (const float*)(in + blockIdx.y * stride);
    float* to = (float*)(out + blockIdx.y * stride);
    if (i < n) to[i] = compute(from[i], rounds);
}

// Marks lines as the last ones to evict.
extern "C" __global__ void touch_last(const float* data, int n, float* sink) {
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float v;
        asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(data + i), "l"(policy));
        sum += v;
    }
    if (sum == 1.2345f) *sink = sum;
}

// The workload with loads and stores marked as the last ones to evict.
extern "C" __global__ void work_last(const float* in, float* out, int n, int rounds) {
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v;
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(in + i), "l"(policy));
    float y = compute(v, rounds);
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" :: "l"(out + i), "f"(y), "l"(policy) : "memory");
}

extern "C" __global__ void spin_ns(long long ns) {
    unsigned long long end = global_ns() + ns;
    while (global_ns() < end) {}
}

extern "C" __global__ void spin_until(volatile long long* flag, long long limit_ns) {
    unsigned long long end = global_ns() + limit_ns;
    while (!*flag && global_ns() < end) {}
}

// First kernel of a graph: waits for the host's flag to move on. `flag[0]` is a counter, `seen` the last one served.
extern "C" __global__ void gate(volatile long long* flag, long long* seen, long long limit_ns) {
    unsigned long long end = global_ns() + limit_ns;
    while (flag[0] <= *seen && global_ns() < end) {}
    seen[0] = flag[0];
    seen[1] = flag[1];
}

// Second kernel of that graph: the gate has copied the number of the set to `seen[1]`.
extern "C" __global__ void work_indirect(const long long* seen, const char* in, char* out, long long stride, int n,
                                         int rounds) {
    long long at = seen[1];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) ((float*)(out + at * stride))[i] = compute(((const float*)(in + at * stride))[i], rounds);
}

struct Resident {
    int go;         // generation in the high bits, set in the low eight
    int arrived;    // blocks that have finished, over all generations
    unsigned seen[3 * 256];  // sampled words of each set when it was last computed
};

__device__ void compute_set(const char* in, char* out, long long stride, int set, int n, int rounds) {
    const float* from = (const float*)(in + set * stride);
    float* to = (float*)(out + set * stride);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        to[i] = compute(__ldcg(from + i), rounds);  // through L2: L1 may hold an older set
}

// A kernel that never ends. `doorbell` is null: watch the inputs, compute a set as soon as it has changed, and count
// it in `answers[set]` (host memory). Otherwise watch the judge's doorbell page itself and answer there.
extern "C" __global__ void resident(const char* in, char* out, long long stride, int sets, int n, int rounds,
                                    volatile long long* stop, volatile long long* answers,
                                    volatile long long* doorbell, Resident* state) {
    __shared__ int chosen;
    volatile Resident* shared_state = state;
    int generation = 0;
    long long served = 0;  // the page is cleared for each runner
    for (;;) {
        ++generation;
        __syncthreads();
        if (blockIdx.x == 0) {
            if (threadIdx.x == 0) chosen = -1;
            __syncthreads();
            int set = threadIdx.x;
            for (;;) {
                if (doorbell) {
                    if (threadIdx.x == 0) {
                        long long now = doorbell[0];
                        if (now != served && doorbell[2] == 1) { chosen = (int)doorbell[3]; }
                        served = now;
                    }
                } else if (set < sets) {
                    volatile const unsigned* words = (volatile const unsigned*)(in + set * stride);
                    unsigned a = words[0], b = words[n / 2], c = words[n - 1];
                    unsigned* old = state->seen + 3 * set;
                    if (a != old[0] && b != old[1] && c != old[2] && a != POISON && c != POISON) {
                        unsigned long long end = global_ns() + 10000;  // the rest of the set is still being written
                        while (global_ns() < end) {}
                        if (atomicCAS(&chosen, -1, set) == -1) { old[0] = words[0]; old[1] = words[n / 2]; old[2] = words[n - 1]; }
                    }
                }
                if (threadIdx.x == 0 && *stop) chosen = 255;
                __syncthreads();
                if (chosen >= 0) break;
                __syncthreads();
            }
            if (threadIdx.x == 0) { __threadfence(); shared_state->go = generation << 8 | chosen; }
        } else {
            if (threadIdx.x == 0) {
                int go;
                while ((go = shared_state->go) >> 8 < generation) {}
                chosen = go & 255;
                __threadfence();
            }
        }
        __syncthreads();
        int set = chosen;
        if (set == 255) return;
        compute_set(in, out, stride, set, n, rounds);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(&state->arrived, 1);
            if (blockIdx.x == 0) {
                while (shared_state->arrived < generation * (int)gridDim.x) {}
                __threadfence_system();
                if (doorbell) doorbell[1] = served; else answers[set] = answers[set] + 1;
                __threadfence_system();
            }
        }
    }
}
