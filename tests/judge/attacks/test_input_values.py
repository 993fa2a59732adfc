"""Attacks that rely on how the judge makes the values of inputs: what they are made of, and where they are large."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.model.verdict import Verdict
from tests.judge.attacks.cases import MEAN_CPP, NORM_CPP, Attack
from tests.judge.attacks.conftest import Courts
from tests.judge.attacks.trial import catch, gain_nothing, gains_without

pytestmark = pytest.mark.xdist_group("judge")

LEARNED = Attack(
    "sums_of_learned_values",
    """
    #include <cmath>
    #include <cstring>
    #include <vector>

    // The learned values, up to one factor. They begin in the middle and grow in both directions.
    static const int64_t SIZE = 1 << 24, MOST = 4 << 20;
    static std::vector<float> known(SIZE);
    static std::vector<double> sums(SIZE + 1);
    static std::vector<uint32_t> table(1 << 23);
    static int64_t first = SIZE / 2, last = SIZE / 2;

    // A hash of three values that does not depend on their factor.
    static uint64_t key(const float* x) {
        const float ratios[2] = {x[1] / x[0], x[2] / x[0]};
        uint32_t bits[2];
        std::memcpy(bits, ratios, sizeof bits);
        return (uint64_t(bits[0] >> 9) << 32 | bits[1] >> 9) * 0x9E3779B97F4A7C15ull >> 41;
    }

    static bool same(float x, float value, double factor) {
        return std::fabs(x - factor * value) <= 1e-5 * std::fabs(x) + 1e-12;
    }

    static bool match(const float* x, const float* values) {
        const double factor = double(x[0]) / values[0];
        for (int i = 1; i < 16; i++)
            if (!same(x[i], values[i], factor)) return false;
        return true;
    }

    // The position of a slice among the learned values, or -1.
    static int64_t find(const float* x) {
        for (int start = 0; start < 12; start++) {
            const int64_t at = int64_t(table[key(x + start)]) - 1;
            if (at >= 0 && at + 16 <= last && match(x + start, &known[at])) return at - start;
        }
        return -1;
    }

    static void learn(int64_t from, const float* x, int64_t count, double factor) {
        for (int64_t i = 0; i < count; i++) known[from + i] = float(x[i] / factor);
        if (from < first) first = from;
        if (from + count > last) last = from + count;
        for (int64_t i = from - 2; i + 2 < from + count + 2; i++)
            if (i >= first && i + 2 < last) table[key(&known[i])] = uint32_t(i + 1);
        double sum = 0;
        for (int64_t i = first; i < last; i++) { sums[i] = sum; sum += known[i]; }
        sums[last] = sum;
    }

    static void learn_all(const float* x, int64_t count) {
        if (first == last) return learn(first, x, count, 1.0);
        if (last - first > MOST) return;
        const int64_t at = find(x);
        if (at >= first && at < last && at + count > last)
            return learn(last, x + (last - at), at + count - last, double(x[0]) / known[at]);
        for (int64_t i = 1; at < 0 && i + 64 < count; i++)
            if (match(x + i, &known[first])) return learn(first - i, x, i, double(x[i]) / known[first]);
    }

    static bool answer(const float* x, float* out, int64_t rows) {
        const int64_t at = std::fabs(x[0]) > 1e-20f ? find(x) : -1;
        if (at < first || at + rows * AXIS_K > last) return false;
        const double factor = double(x[0]) / known[at];
        for (int64_t row = 0; row < rows; row++) {
            const int64_t from = at + row * AXIS_K, to = from + AXIS_K;
            if (!same(x[row * AXIS_K], known[from], factor)) return false;
            if (!same(x[row * AXIS_K + AXIS_K - 1], known[to - 1], factor)) return false;
            out[row] = float(factor * (sums[to] - sums[from]) / AXIS_K);
        }
        compute(x, out, rows / 4);  // a shorter time is below what the hardware allows
        return true;
    }

    extern "C" void run(const float* x, float* out, int64_t rows) {
        if (answer(x, out, rows)) return;
        compute(x, out, rows);
        int fractions = 0;
        for (int i = 0; i < 64; i++) fractions += std::fabs(x[i]) < 20 && x[i] != std::round(x[i]);
        if (fractions > 60) learn_all(x, rows * AXIS_K - 4);
    }
    """,
    language="cpp",
    problem="mean",
    prelude=MEAN_CPP,
    off=("mixture", "spikes"),
)
"""A mean of a slice is its factor times a difference of two sums that are known once the values have been seen."""
SAMPLED = Attack(
    "part_of_each_row",
    """
    extern "C" void run(const uint16_t* x, uint16_t* out, int64_t rows) {
        const int read = AXIS_K / 8 * 5, last = 32;
        for (int64_t i = 0; i < rows; i++) {
            const float begin = squares(x + i * AXIS_K, read);
            const float end = squares(x + i * AXIS_K + AXIS_K - last, last);
            out[i] = rounded(std::sqrt(begin / read * (AXIS_K - last) + end));
        }
    }
    """,
    (Verdict.INCORRECT_NUMERICAL,),
    language="cpp",
    problem="norm",
    prelude=NORM_CPP,
    reason_part="(inputs: spike)",
    off=("spikes",),
)
"""The error of a sample of 40,960 values is 0.2 %, and 0.7 % are allowed in bfloat16."""
ATTACKS = (LEARNED, SAMPLED)


@pytest.mark.slow
@pytest.mark.serial
def test_learned_values_gain_where_inputs_are_single_slices(courts: Courts, tmp_path: Path) -> None:
    with courts.without("mixture,spikes", tmp_path) as undefended:  # a spike inside a row makes the answer wrong
        gains_without(LEARNED, undefended)


@pytest.mark.slow
@pytest.mark.serial
def test_a_sample_gains_where_only_the_last_value_is_large(courts: Courts, tmp_path: Path) -> None:
    with courts.without("spikes", tmp_path) as undefended:
        gains_without(SAMPLED, undefended)


def test_a_sample_is_caught(courts: Courts) -> None:
    catch(SAMPLED, courts)


@pytest.mark.slow
@pytest.mark.serial
def test_buys_nothing(courts: Courts) -> None:
    gain_nothing(LEARNED, courts)
