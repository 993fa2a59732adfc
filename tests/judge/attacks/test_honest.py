"""Honest solutions that resemble attacks: the judge must accept them."""

from __future__ import annotations

import pytest

from harness.model.verdict import Verdict
from tests.judge.attacks.cases import CPP, EARLY, HONEST, HONEST_CPP, Attack
from tests.judge.attacks.conftest import Courts
from tests.judge.attacks.trial import sampled

pytestmark = pytest.mark.xdist_group("judge")

CONTROLS = (
    HONEST,
    HONEST_CPP,
    Attack(
        "native_threads_joined",
        """
        #include <thread>
        extern "C" void run(const float* x, const float* weight, float* out, int64_t rows) {
            int64_t half = rows / 2;
            std::thread second([=] { compute(x + half * AXIS_K, weight, out + half * AXIS_N, rows - half); });
            compute(x, weight, out, half);
            second.join();
        }
        """,
        language="cpp",
        prelude=CPP,
    ),
    Attack(
        "python_threads_joined",
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        def run(x, weight, out):
            half = x.shape[0] // 2
            list(pool.map(lambda rows: honest(x[rows], weight, out[rows]), (slice(0, half), slice(half, None))))
        """,
        prelude=EARLY,
    ),
    Attack(
        "workspace_kept_between_calls",
        """
        #include <vector>
        extern "C" void run(const float* x, const float* weight, float* out, int64_t rows) {
            static std::vector<float> turned;
            turned.assign(AXIS_N * AXIS_K, 0.0f);
            for (int n = 0; n < AXIS_N; n++)
                for (int k = 0; k < AXIS_K; k++) turned[k * AXIS_N + n] = weight[n * AXIS_K + k];
            for (int64_t i = 0; i < rows; i++) {
                float sums[AXIS_N] = {};
                for (int k = 0; k < AXIS_K; k++)
                    for (int n = 0; n < AXIS_N; n++) sums[n] += x[i * AXIS_K + k] * turned[k * AXIS_N + n];
                for (int n = 0; n < AXIS_N; n++) out[i * AXIS_N + n] = sums[n];
            }
        }
        """,
        language="cpp",
        prelude=CPP,
    ),
    Attack(
        "buffers_and_plans_by_shape",
        """
        plans = {}
        def run(x, weight, out):
            if x.shape not in plans:
                plans[x.shape] = torch.empty(weight.shape[1], weight.shape[0]), [slice(0, 48), slice(48, None)]
            turned, parts = plans[x.shape]
            turned.copy_(weight.t())
            for part in parts:
                torch.mm(x[part], turned, out=out[part])
        """,
        prelude=EARLY,
    ),
    Attack(
        "outputs_returned",
        "def run(x, weight):\n    return x @ weight.t()\n",
        destination_passing=False,
    ),
    Attack(
        "outputs_returned_by_name",
        "def run(x, weight):\n    return {'out': torch.nn.functional.linear(x, weight)}\n",
        destination_passing=False,
        prelude="import torch\n",
    ),
    Attack(
        "temporary_memory_in_a_call",
        """
        def run(x, weight, out):
            parts = [x[:, part : part + 64] @ weight[:, part : part + 64].t() for part in range(0, 256, 64)]
            torch.sum(torch.stack(parts), dim=0, out=out)
        """,
        prelude=EARLY,
    ),
    Attack(
        "tables_made_when_loaded",
        """
        order = torch.arange(255, -1, -1)
        def run(x, weight, out):
            torch.mm(x[:, order], weight[:, order].t(), out=out)
        """,
        prelude=EARLY,
    ),
    Attack(
        "mean_one_by_one",
        """
        #include <cstdint>
        extern "C" void run(const float* x, float* out, int64_t rows) {
            for (int64_t i = 0; i < rows; i++) {
                float sum = 0;
                for (int k = 0; k < AXIS_K; k++) sum += x[i * AXIS_K + k];
                out[i] = sum / AXIS_K;
            }
        }
        """,
        language="cpp",
        problem="mean",
    ),
)
COMPILED = Attack(
    "compiled_by_torch",
    """
    @torch.compile(dynamic=False)
    def made(x, weight):
        return torch.relu(x @ weight.t()) - torch.relu(-(x @ weight.t()))
    def run(x, weight, out):
        out.copy_(made(x, weight))
    """,
    prelude=EARLY,
)


OFTEN = frozenset({"outputs_returned_by_name"})


@pytest.mark.parametrize("control", sampled(CONTROLS, OFTEN))
def test_passes(control: Attack, courts: Courts) -> None:
    answer = courts.real(control)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.summary.speedup_ci95 is not None
    speedup_ci95_low, speedup_ci95_high = answer.summary.speedup_ci95
    assert 0 < speedup_ci95_low <= speedup_ci95_high
    for workload in answer.workloads:
        assert workload.checked >= 12
        assert workload.matched == 1.0
        assert workload.claimed_us is not None


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_the_latency_agrees_with_the_runners_own_clock(control: Attack, courts: Courts) -> None:
    # Preemption by the host can make a single reading many times too long.
    assert any(_latency_bounds_the_claim(control, courts) for _ in range(3))


def _latency_bounds_the_claim(control: Attack, courts: Courts) -> bool:
    """Return true if the latency agrees with the claimed one, which the runner measures with its own clock."""
    answer = courts.real(control)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.summary.speedup_ci95 is not None
    speedup_ci95_low, speedup_ci95_high = answer.summary.speedup_ci95
    assert 0.001 < speedup_ci95_low <= speedup_ci95_high < 10
    near = True
    for workload in answer.workloads:
        assert workload.checked >= 12
        assert workload.matched == 1.0
        assert workload.latency_us is not None
        assert workload.claimed_us is not None
        near = near and 0.8 * workload.claimed_us < workload.latency_us < 2.5 * workload.claimed_us + 100
    return near


@pytest.mark.slow
def test_code_compiled_by_torch_passes(courts: Courts) -> None:
    answer = courts.real(COMPILED, max_judge_s=120.0)
    assert answer.verdict is Verdict.PASSED, answer.reason
