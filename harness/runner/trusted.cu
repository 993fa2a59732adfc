// The trusted side's own kernels: they run between a candidate's calls and are never part of what is timed.

// Philox 4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"): one block of four words.
__device__ uint4 philox(uint4 counter, unsigned key0, unsigned key1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned low0 = counter.x * 0xD2511F53u, high0 = __umulhi(counter.x, 0xD2511F53u);
        const unsigned low1 = counter.z * 0xCD9E8D57u, high1 = __umulhi(counter.z, 0xCD9E8D57u);
        counter = make_uint4(high1 ^ counter.y ^ key0, low1, high0 ^ counter.w ^ key1, low0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// to = from XOR keystream: hides a set from device code that runs before its call, and shows it again. 16-byte words.
extern "C" __global__ void veil(const uint4* from, uint4* to, unsigned long long words, unsigned key0, unsigned key1, unsigned set0, unsigned set1) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words; i += step) {
        const uint4 stream = philox(make_uint4((unsigned)i, (unsigned)(i >> 32), set0, set1), key0, key1);
        const uint4 word = from[i];
        to[i] = make_uint4(word.x ^ stream.x, word.y ^ stream.y, word.z ^ stream.z, word.w ^ stream.w);
    }
}

// Fills with one 32-bit pattern: workspaces, and the buffer that displaces everything else from L2.
extern "C" __global__ void fill(unsigned* to, unsigned long long words, unsigned pattern) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < words; i += step) to[i] = pattern;
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
