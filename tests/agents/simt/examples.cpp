// Runs the documentation's fast examples on small inputs and compares them with plain loops in double precision.
// test_simt.py puts the examples' kernels before this file. Prints `NAME ERROR 1`, errors in units of the problems' tolerance.
#include <cstdio>
#include <numeric>
#include <random>

namespace {

std::mt19937 generator(1);
using Bf16s = std::vector<uint16_t>;
Bf16s random_bf16(size_t count, float scale = 1) {
    std::normal_distribution<float> normal;
    Bf16s values(count);
    for (uint16_t& value : values) value = to_bf16(scale * normal(generator));
    return values;
}
constexpr uint16_t NOT_WRITTEN = 0x7fc0;  // NaN

struct Check {
    const char* name;
    double worst = 0;
    void within_tolerance(uint16_t value, double expected) {
        const double error = std::fabs(from_bf16(value) - expected) / (0.01 + 0.02 * std::fabs(expected));
        worst = error <= worst ? worst : error;  // a NaN becomes the worst
    }
    ~Check() { std::printf("%s %g 1\n", name, worst); }
};

// softmax(q . k / sqrt(128)) v of one query; key(j) and value(j) are rows of 128.
template <class Key, class Value>
std::vector<double> attention(const uint16_t* q, int keys, Key key, Value value) {
    std::vector<double> weight(keys), out(128);
    for (int j = 0; j < keys; ++j)
        for (int e = 0; e < 128; ++e) weight[j] += double(from_bf16(q[e])) * from_bf16(key(j)[e]) / std::sqrt(128.0);
    const double most = *std::max_element(weight.begin(), weight.end());
    for (double& w : weight) w = std::exp(w - most);
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    for (int j = 0; j < keys; ++j)
        for (int e = 0; e < 128; ++e) out[e] += weight[j] / total * from_bf16(value(j)[e]);
    return out;
}

void causal_attention(int tokens, int heads, float scale) {
    Check check{"hopper_attention"};
    const size_t count = size_t(heads) * tokens * 128;
    Bf16s q = random_bf16(count, scale), k = random_bf16(count), v = random_bf16(count), out(count, NOT_WRITTEN);
    const auto map = [&](Bf16s& data, int rows) { return TmaTensor{data.data(), 128, tokens, heads, rows}; };
    gridDim.x = (tokens + 127) / 128;
    for (int head = 0; head < heads; ++head)
        for (int tile = 0; tile < gridDim.x; ++tile)
            run_hopper_block(384, {tile, head}, [&] { hopper_attention::attend(map(q, 128), map(k, 128), map(v, 128), map(out, 64)); });
    for (int head = 0; head < heads; ++head)
        for (int i = 0; i < tokens; ++i) {
            const auto row = [&](const Bf16s& data, int j) { return &data[(size_t(head) * tokens + j) * 128]; };
            const auto expected = attention(row(q, i), i + 1, [&](int j) { return row(k, j); }, [&](int j) { return row(v, j); });
            for (int e = 0; e < 128; ++e) check.within_tolerance(row(out, i)[e], expected[e]);
        }
}

void gemm(int m, int blocks) {
    Check check{"hopper_gemm_fast"};
    const int n = AXIS_n, k = AXIS_k;
    Bf16s x = random_bf16(m * k), w = random_bf16(n * k), y(m * n, NOT_WRITTEN);
    gridDim.x = blocks;
    for (int block = 0; block < blocks; ++block)
        run_hopper_block(384, {block}, [&] {
            hopper_gemm_fast::gemm({x.data(), k, m, 1, 128}, {w.data(), k, n, 1, 256}, {y.data(), n, m, 1, 64}, m);
        });
    for (int row = 0; row < m; ++row)
        for (int column = 0; column < n; ++column) {
            double sum = 0;
            for (int i = 0; i < k; ++i) sum += double(from_bf16(x[row * k + i])) * from_bf16(w[column * k + i]);
            check.within_tolerance(y[row * n + column], sum);
        }
}

void decode(const std::vector<int>& lengths, int blocks) {
    Check check{"paged_decode"};
    const int batch = int(lengths.size()), max_pages = (*std::max_element(lengths.begin(), lengths.end()) + 15) / 16 + 1, pages = batch * max_pages + 7;
    const Bf16s q = random_bf16(batch * 32 * 128);
    Bf16s k = random_bf16(size_t(pages) * 16 * 1024), v = random_bf16(k.size()), out(q.size(), NOT_WRITTEN);
    std::vector<int> physical(pages), table(batch * max_pages, 1 << 28);  // an entry beyond a length must not be followed
    std::iota(physical.begin(), physical.end(), 0);
    std::shuffle(physical.begin(), physical.end(), generator);
    const auto token = [&](int sequence, int t) { return (size_t(table[sequence * max_pages + t / 16]) * 16 + t % 16) * 1024; };
    for (int sequence = 0; sequence < batch; ++sequence) {
        for (int page = 0; page < (lengths[sequence] + 15) / 16; ++page) table[sequence * max_pages + page] = physical[sequence * max_pages + page];
        for (int t = lengths[sequence]; t % 16; ++t)  // the tail of the last page holds NaN
            for (int e = 0; e < 1024; ++e) k[token(sequence, t) + e] = v[token(sequence, t) + e] = NOT_WRITTEN;
    }
    std::vector<float> sums(2 * blocks * 32 * 128, NAN);
    std::vector<float2> stats(2 * blocks * 32, {NAN, NAN});
    std::vector<unsigned> done(batch * 8);
    gridDim.x = blocks;
    std::vector<int> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator);  // any block may be the last of a sequence
    for (const int block : order)
        run_hopper_block(288, {block}, [&] {
            paged_decode::attend(reinterpret_cast<const uint4*>(q.data()), reinterpret_cast<const unsigned char*>(k.data()),
                                 reinterpret_cast<const unsigned char*>(v.data()), table.data(), lengths.data(),
                                 reinterpret_cast<__nv_bfloat16*>(out.data()), sums.data(), stats.data(), done.data(), batch, max_pages);
        });
    for (int sequence = 0; sequence < batch; ++sequence)
        for (int head = 0; head < 32 && lengths[sequence]; ++head) {
            const int first = (sequence * 32 + head) * 128, kv = head / 4 * 128;
            const auto expected = attention(&q[first], lengths[sequence], [&](int t) { return &k[token(sequence, t) + kv]; },
                                            [&](int t) { return &v[token(sequence, t) + kv]; });
            for (int e = 0; e < 128; ++e) check.within_tolerance(out[first + e], expected[e]);
        }
}

void rmsnorm(int rows) {
    Check check{"fused_norm_cuda"};
    const int hidden = AXIS_hidden;
    const Bf16s x = random_bf16(rows * hidden, 3), weight = random_bf16(hidden);
    Bf16s y(x.size(), NOT_WRITTEN);
    const auto vectors = [](const Bf16s& values) { return reinterpret_cast<const uint4*>(values.data()); };
    for (int row = 0; row < rows; ++row)
        run_hopper_block(128, {row}, [&] { fused_norm_cuda::rmsnorm(vectors(x), vectors(weight), reinterpret_cast<uint4*>(y.data())); });
    for (int row = 0; row < rows; ++row) {
        double squares = 0;
        for (int i = 0; i < hidden; ++i) squares += double(from_bf16(x[row * hidden + i])) * from_bf16(x[row * hidden + i]);
        const double factor = 1 / std::sqrt(squares / hidden + 1e-5);
        for (int i = 0; i < hidden; ++i) check.within_tolerance(y[row * hidden + i], from_bf16(x[row * hidden + i]) * factor * from_bf16(weight[i]));
    }
}

}  // namespace

int main() {
    rmsnorm(3);
    causal_attention(1, 1, 1);
    causal_attention(129, 2, 1);
    causal_attention(260, 1, 8);
    gemm(1, 1);
    gemm(130, 2);
    gemm(300, 3);
    decode({5}, 1);
    decode({100, 17, 1}, 3);
    decode({300, 100}, 9);
    decode({1, 2, 3, 160, 33, 0, 64}, 7);
}
