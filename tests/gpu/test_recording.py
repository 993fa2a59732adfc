"""Triton solutions with launches that can be replayed, and with launches that cannot."""

from __future__ import annotations

import pytest

from harness.model.verdict import Trust, Verdict
from tests.gpu.cases import Attack
from tests.gpu.conftest import GpuCourts

_KERNELS = """
import torch
import triton
import triton.language as tl

@triton.jit
def normalise(x, out, scale, eps, K: tl.constexpr):
    row = tl.program_id(0)
    at = row * K + tl.arange(0, K)
    given = tl.load(x + at)
    mean = tl.sum(given * given) / K
    factor = tl.load(scale)
    tl.store(out + at, given * tl.rsqrt(mean + eps) * factor)

@triton.jit
def squares(x, sums, K: tl.constexpr, PART: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    given = tl.load(x + row * K + part * PART + tl.arange(0, PART))
    tl.atomic_add(sums + row, tl.sum(given * given))

@triton.jit
def scaled(x, out, sums, eps, K: tl.constexpr):
    row = tl.program_id(0)
    at = row * K + tl.arange(0, K)
    tl.store(out + at, tl.load(x + at) * tl.rsqrt(tl.load(sums + row) / K + eps))

@triton.jit
def plain(x, out, eps, K: tl.constexpr):
    row = tl.program_id(0)
    at = row * K + tl.arange(0, K)
    given = tl.load(x + at)
    tl.store(out + at, given * tl.rsqrt(tl.sum(given * given) / K + eps))
"""


def _solution(name: str, body: str, *, passing: bool = True) -> Attack:
    return Attack(name, _KERNELS + body, language="triton", problem="norm", destination_passing=passing)


RECORDED = (
    (_solution("recorded", "def run(x, out):\n    plain[(x.shape[0],)](x, out, 1e-5, K=1024)\n"), 1),
    (
        _solution(
            "recorded_returned",
            """
def run(x):
    out = torch.empty_like(x)
    plain[(x.shape[0],)](x, out, 1e-5, K=1024)
    return out
""",
            passing=False,
        ),
        1,
    ),
    (
        _solution(
            "recorded_with_a_zeroed_workspace",
            """
def run(x, out):
    sums = torch.zeros(x.shape[0], device=x.device)
    squares[(x.shape[0], 4)](x, sums, K=1024, PART=256)
    scaled[(x.shape[0],)](x, out, sums, 1e-5, K=1024)
""",
        ),
        2,
    ),
)
AS_IT_IS = (
    (
        _solution(
            "with_an_operator",
            "def run(x, out):\n    plain[(x.shape[0],)](x, out, 1e-5, K=1024)\n    out.mul_(1.0)\n",
        ),
        "the call uses the torch operator aten::mul_",
    ),
    (
        _solution(
            "with_a_value_on_the_host",
            """
def run(x, out):
    eps = 1e-5 if x[0, 0].item() < 100 else 1e-4
    plain[(x.shape[0],)](x, out, eps, K=1024)
""",
        ),
        "the call uses the torch operator aten::_local_scalar_dense",
    ),
    (
        _solution(
            "with_a_tensor_of_an_earlier_call",
            """
kept = {}
def run(x, out):
    if "one" not in kept:
        kept["one"] = torch.ones(1, device=x.device)
    normalise[(x.shape[0],)](x, out, kept["one"], 1e-5, K=1024)
""",
        ),
        "replayed, its launches do something else: ",
    ),
    (
        _solution(
            "without_a_launch",
            "def run(x, out):\n    out.copy_(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))\n",
        ),
        "the call uses the torch operator aten::",
    ),
)


@pytest.mark.parametrize(("solution", "cubins"), RECORDED, ids=lambda value: getattr(value, "name", None))
def test_its_launches_are_replayed(solution: Attack, cubins: int, courts: GpuCourts) -> None:
    answer = courts.real(solution)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.recording is not None
    assert answer.recording.reason is None
    assert answer.trust is Trust.RECORDED
    assert len(answer.recording.cubins) == cubins
    for workload in answer.workloads:
        assert workload.latency_us is not None
        assert workload.bounded_us is not None
        assert 0.5 * workload.latency_us < workload.bounded_us, "the whole call takes longer than its launches"


@pytest.mark.parametrize(("solution", "reason"), AS_IT_IS, ids=lambda value: getattr(value, "name", None))
def test_a_call_that_cannot_be_replayed_is_timed_as_a_whole(solution: Attack, reason: str, courts: GpuCourts) -> None:
    answer = courts.real(solution)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.recording is not None
    assert str(answer.recording.reason).startswith(reason)
    assert answer.recording.cubins == ()
    assert answer.trust is not Trust.RECORDED
