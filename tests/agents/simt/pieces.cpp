// Runs the documentation's pieces of device code on random inputs and compares them with plain loops in double precision.
// test_simt.py puts the pieces before this file, each in the namespace that is named here. Prints `NAME ERROR LIMIT` lines.
#include <array>
#include <cstdio>
#include <numeric>
#include <random>

namespace {

std::mt19937 generator(3);
float normal() { return std::normal_distribution<float>()(generator); }
float small_integer() { return float(generator() % 10); }
using Bf16s = std::vector<uint16_t>;
Bf16s random_bf16(size_t count) {
    Bf16s values(count);
    for (uint16_t& value : values) value = to_bf16(normal());
    return values;
}
std::vector<float> random_floats(size_t count, float (*draw)() = normal) {
    std::vector<float> values(count);
    for (float& value : values) value = draw();
    return values;
}
const uint4* vectors(const Bf16s& values) { return reinterpret_cast<const uint4*>(values.data()); }
uint4* vectors(Bf16s& values) { return reinterpret_cast<uint4*>(values.data()); }

struct Check {
    const char* name;
    double limit, worst = 0;
    void near(double value, double expected, double floor = 0.1) {
        const double error = std::fabs(value - expected) / (floor + std::fabs(expected));
        worst = error <= worst ? worst : error;  // a NaN becomes the worst
    }
    void equal(double value, double expected) {
        if (value != expected) worst = INFINITY;
    }
    ~Check() { std::printf("%s %g %g\n", name, worst, limit); }
};
constexpr double BF16 = 1.0 / 128;  // twice the largest rounding error

void softmax() {
    Check check{"softmax", BF16};
    const int columns = 3000;
    const Bf16s x = random_bf16(columns);
    Bf16s y(columns);
    run_block(256, {}, [&] { online_softmax::softmax(vectors(x), vectors(y), columns); });
    double sum = 0;
    for (const uint16_t value : x) sum += std::exp(double(from_bf16(value)));
    for (int i = 0; i < columns; ++i) check.near(from_bf16(y[i]), std::exp(double(from_bf16(x[i]))) / sum, 0);
}

void gemv() {
    Check check{"gemv", BF16};
    const int n = 19, k = 512;
    const Bf16s w = random_bf16(n * k), x = random_bf16(k);
    std::vector<__nv_bfloat16> y(n);
    for (int block = 0; block < 3; ++block) run_block(256, {block}, [&] { gemm::gemv(vectors(w), vectors(x), y.data(), n, k); });
    for (int row = 0; row < n; ++row) {
        double sum = 0;
        for (int i = 0; i < k; ++i) sum += double(from_bf16(w[row * k + i])) * from_bf16(x[i]);
        check.near(from_bf16(y[row].bits), sum, 1);
    }
}

void top_k() {
    Check check{"top_k", 0};
    for (int round = 0; round < 20; ++round) {
        std::vector<float> values = random_floats(256);
        if (round % 2)
            for (float& value : values) value = std::round(3 * value);  // many ties
        std::vector<int> chosen(32), order(256);
        run_block(32, {}, [&] {
            float mine[8];
            for (int i = 0; i < 8; ++i) mine[i] = values[i * 32 + threadIdx.x];
            chosen[threadIdx.x] = top_k_in_warp::warp_top_k<8>(mine, 20);
        });
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
        for (int rank = 0; rank < 20; ++rank) check.equal(chosen[rank], order[rank]);
    }
}

void routing_positions() {
    Check check{"routing_positions", 0};
    for (const int pairs : {1, 31, 300, 1000}) {
        std::vector<int> expert(pairs), position(pairs, -1), offsets(65), expected(65);
        for (int& value : expert) value = int(generator() % (pairs < 100 ? 3 : 64));
        run_block(256, {}, [&] { routing::positions<64, 256>(expert.data(), pairs, position.data(), offsets.data()); });
        for (const int value : expert) ++expected[value + 1];
        std::partial_sum(expected.begin(), expected.end(), expected.begin());
        for (int e = 0; e <= 64; ++e) check.equal(offsets[e], expected[e]);
        for (int i = 0; i < pairs; ++i) check.equal(position[i], expected[expert[i]]++);
    }
}

void causal_conv1d() {
    Check check{"causal_conv1d", BF16};
    const int length = 37, channels = 1024;
    const Bf16s x = random_bf16(2 * length * channels);
    const std::vector<float> w = random_floats(4 * channels), bias = random_floats(channels);
    Bf16s y(x.size());
    for (int batch = 0; batch < 2; ++batch)
        for (int run = 0; run < 3; ++run)
            run_block(128, {0, run, batch}, [&] { convolution::conv1d<16>(vectors(x), w.data(), bias.data(), vectors(y), length, channels); });
    for (int i = 0; i < int(x.size()); ++i) {
        const int c = i % channels, t = i / channels % length;
        double sum = bias[c];
        for (int j = 0; j < 4; ++j)
            if (t - 3 + j >= 0) sum += w[j * channels + c] * from_bf16(x[i + (j - 3) * channels]);
        check.near(from_bf16(y[i]), sum / (1 + std::exp(-sum)));
    }
}

void rope() {
    Check check{"rope", BF16};
    const int heads = 40;
    const Bf16s x = random_bf16(heads * 128);
    Bf16s cosine = random_bf16(128), sine = random_bf16(128), y(x.size());
    std::copy_n(cosine.begin(), 64, cosine.begin() + 64);
    std::copy_n(sine.begin(), 64, sine.begin() + 64);
    run_block(256, {}, [&] { rotary::rope(vectors(x), vectors(cosine), vectors(sine), vectors(y), heads); });
    for (int i = 0; i < int(x.size()); ++i) {
        const int d = i % 128;
        const double turned = d < 64 ? -from_bf16(x[i + 64]) : from_bf16(x[i - 64]);
        check.near(from_bf16(y[i]), from_bf16(x[i]) * double(from_bf16(cosine[d])) + turned * from_bf16(sine[d]));
    }
}

void gated_elementwise() {
    Check check{"gated_elementwise", BF16};
    const int count = 8 * 1500;
    const Bf16s a = random_bf16(count), b = random_bf16(count);
    Bf16s y(count);
    for (int block = 0; block < 2; ++block) run_block(256, {block}, [&] { memory_bound::gate(vectors(a), vectors(b), vectors(y), count); });
    for (int i = 0; i < count; ++i) {
        const double gate = from_bf16(b[i]);
        check.near(from_bf16(y[i]), from_bf16(a[i]) * gate / (1 + std::exp(-gate)));
    }
}

void transpose() {
    Check check{"transpose", 0};
    const int m = 128, n = 192;
    const Bf16s x = random_bf16(m * n);
    Bf16s y(x.size());
    for (int column = 0; column < n / 64; ++column)
        for (int row = 0; row < m / 64; ++row)
            run_block(256, {column, row}, [&] { transposed::transpose(reinterpret_cast<const unsigned*>(x.data()), reinterpret_cast<unsigned*>(y.data()), m, n); });
    for (int i = 0; i < m * n; ++i) check.equal(y[i % n * m + i / n], x[i]);
}

void grouped_walk() {
    Check check{"grouped_walk", 0};
    const int offsets[] = {0, 5, 5, 300, 301, 700}, n = 512;
    std::array<int, 5> seen{}, expected{4, 0, 12, 4, 16};
    for (int block = 0; block < 7; ++block) {
        grouped_gemm::Walk walk;
        grouped_gemm::Work work;
        for (int tile = block; walk.find<128, 128>(tile, offsets, 5, n, work); tile += 7) {
            ++seen[work.group];
            check.equal(work.row >= 0 && work.row < offsets[work.group + 1] - offsets[work.group] && work.column < n, 1);
        }
    }
    for (int group = 0; group < 5; ++group) check.equal(seen[group], expected[group]);
}

void stream_k() {
    Check check{"stream_k", 0};
    for (const auto& [tiles, steps, blocks] : {std::array{5, 7, 3}, {10, 16, 4}, {3, 100, 8}, {7, 5, 7}, {2, 3, 9}}) {
        const std::vector<float> value = random_floats(tiles * steps, small_integer);
        std::vector<float> result(tiles * 64), partial(blocks * 64);
        std::vector<unsigned> flags(blocks);
        gridDim.x = blocks;
        const auto multiply = [&, steps = steps](float (&sum)[1], int tile, int from, int to) {
            for (int k = from; k < to; ++k) sum[0] += value[tile * steps + k] + threadIdx.x;
        };
        const auto finish = [&](const float (&sum)[1], int tile) { result[tile * 64 + threadIdx.x] += sum[0]; };
        // A block waits for later blocks only: run one at a time, the last one first.
        for (int block = blocks - 1; block >= 0; --block)
            run_block(64, {block}, [&, tiles = tiles, steps = steps] {
                stream_k_loop::stream_k<1, 64>(tiles, steps, partial.data(), flags.data(), multiply, finish);
            });
        for (int tile = 0; tile < tiles; ++tile)
            for (int thread = 0; thread < 64; ++thread)
                check.equal(result[tile * 64 + thread], std::accumulate(&value[tile * steps], &value[tile * steps] + steps, 0.0f) + steps * thread);
    }
}

void split_k() {
    Check check{"split_k", 0};
    const std::vector<float> value = random_floats(2 * 3 * 4 * 64, small_integer);
    std::vector<float> partial(value.size());
    std::vector<unsigned> counter(2);
    std::atomic<int> written = 0;
    for (int tile = 0; tile < 2; ++tile)
        for (const int split : {2, 0, 1})
            run_block(64, {}, [&] {
                float mine[4];
                const auto at = [&](int s, int i) { return value[((tile * 3 + s) * 4 + i) * 64 + threadIdx.x]; };
                for (int i = 0; i < 4; ++i) mine[i] = at(split, i);
                if (!splitting::add_up<4, 64>(mine, partial.data(), counter.data(), tile, split, 3)) return;
                ++written;
                const std::lock_guard<std::mutex> held(memory_lock);
                for (int i = 0; i < 4; ++i) check.equal(mine[i], at(0, i) + at(1, i) + at(2, i));
            });
    check.equal(written, 2 * 64);
}

void scans() {
    Check check{"scans", 0};
    const std::vector<float> value = random_floats(256, small_integer);
    std::vector<float> before(256);
    run_block(256, {}, [&] {
        float total;
        before[threadIdx.x] = block_scan::block_exclusive<256>(value[threadIdx.x], total);
    });
    std::vector<unsigned long long> state(256);
    float sum = 0;
    for (int i = 0; i < 256; sum += value[i++]) {
        check.equal(before[i], sum);
        check.equal(look_back_scan::look_back(state.data(), i, value[i]), sum);
    }
}

void recurrence() {
    Check check{"recurrence", 1e-5};
    const std::vector<float> b = random_floats(32);
    std::vector<float> state(32);
    run_block(32, {}, [&] { state[threadIdx.x] = recurrences::warp_scan({0.5f + 0.01f * threadIdx.x, b[threadIdx.x]}).b; });
    double h = 0;
    for (int i = 0; i < 32; ++i) check.near(state[i], h = (0.5 + 0.01 * i) * h + b[i]);
}

void welford() {
    Check check{"welford", 1e-4};
    std::vector<float> x = random_floats(32 * 50);
    for (float& value : x) value += 1000;
    normalization::Moments all{};
    run_block(32, {}, [&] {
        normalization::Moments mine = {0, 0, 0};
        for (int i = 0; i < 50; ++i) mine = normalization::add(mine, x[i * 32 + threadIdx.x]);
        mine = normalization::warp_merge(mine);
        if (threadIdx.x == 0) all = mine;
    });
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / x.size();
    double squares = 0;
    for (const float value : x) squares += (value - mean) * (value - mean);
    check.near(all.mean, mean);
    check.near(all.m2, squares);
}

void int4_unpacking() {
    Check check{"int4_unpacking", 0};
    for (int round = 0; round < 100; ++round) {
        const unsigned packed = unsigned(generator());
        __nv_bfloat162 value[4];
        int4::unpack_int4(packed, value, 7.0f);
        for (int j = 0; j < 4; ++j) {
            check.equal(from_bf16(value[j].low), int(packed >> 4 * j & 15) - 7);
            check.equal(from_bf16(value[j].high), int(packed >> (4 * j + 16) & 15) - 7);
        }
    }
}

}  // namespace

int main() {
    for (void (*check)() : {softmax, gemv, top_k, routing_positions, causal_conv1d, rope, gated_elementwise, transpose, grouped_walk, stream_k,
                            split_k, scans, recurrence, welford, int4_unpacking})
        check();
}
