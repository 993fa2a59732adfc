// Rotary embedding of queries and keys in one launch. A thread rotates four elements of a head's first half against the
// four that belong to them in its second half.
//
// BLOCK  threads a block

constexpr int HALF = AXIS_head_dim / 2 / 4;                               // vectors of half a head
constexpr int TOKEN = (AXIS_q_heads + AXIS_kv_heads) * HALF;              // threads a token
constexpr int Q_ROW = AXIS_q_heads * HALF * 2, K_ROW = AXIS_kv_heads * HALF * 2;  // vectors of a token

extern "C" __global__ void __launch_bounds__(BLOCK) rope_gqa(const float4* __restrict__ q, const float4* __restrict__ k, const float4* __restrict__ cosines, const float4* __restrict__ sines, float4* __restrict__ q_out, float4* __restrict__ k_out, int count) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= count) return;
    const int token = i / TOKEN, head = i % TOKEN / HALF, part = i % HALF;
    const bool query = head < AXIS_q_heads;
    const int at = query ? token * Q_ROW + head * 2 * HALF + part
                         : token * K_ROW + (head - AXIS_q_heads) * 2 * HALF + part;
    const float4* from = query ? q : k;
    float4* to = query ? q_out : k_out;
    const float4 a = from[at], b = from[at + HALF], c = cosines[token * HALF + part], s = sines[token * HALF + part];
    to[at] = make_float4(a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y, a.z * c.z - b.z * s.z, a.w * c.w - b.w * s.w);
    to[at + HALF] = make_float4(b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y, b.z * c.z + a.z * s.z, b.w * c.w + a.w * s.w);
}
