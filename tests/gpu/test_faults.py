"""A fault gets its verdict, and does not affect the next candidate."""

# ruff: noqa: E501 - sources of solutions keep their lines
from __future__ import annotations

import time

import pytest

from harness.model.verdict import Verdict
from tests.gpu.cases import EARLY, HONEST, NORM, Attack
from tests.gpu.conftest import GpuCourts

_USABLE_S = 10.0
ERROR, LATE = (Verdict.RUNTIME_ERROR,), (Verdict.TIMEOUT, Verdict.RUNTIME_ERROR)


def _kernel(name: str, line: str, caught: tuple[Verdict, ...]) -> Attack:
    source = NORM + f'extern "C" __global__ void run(const float* x, float* out) {{ norm(x, out); {line} }}\n'
    return Attack(name, source, caught, language="cuda", problem="norm")


FAULTS = (
    _kernel("illegal_address", "*(volatile float*)(0x123456789000ull) = 1;", ERROR),
    _kernel("misaligned_address", "*(volatile float*)((char*)out + 2) = 1;", ERROR),
    _kernel("device_assert", 'asm volatile("trap;");', ERROR),
    _kernel("infinite_kernel", "while (*(volatile float*)out != 1234.5f);", LATE),
    Attack("out_of_memory", "import torch\ndef run(x, weight, out):\n    torch.empty(1 << 40, device='cuda')\n", ERROR),
    Attack(
        "takes_all_memory",
        EARLY
        + "kept = []\ntry:\n    while True:\n        kept.append(torch.empty(1 << 30, dtype=torch.uint8, device='cuda'))\n"
        "except torch.OutOfMemoryError:\n    pass\nrun = honest\n",
        (Verdict.RUNTIME_ERROR, Verdict.PASSED),
    ),
    Attack(
        "ten_gigabytes_of_stdout",
        EARLY + "import os\nfor _ in range(10_000):\n    os.write(1, b'x' * (1 << 20))\nrun = honest\n",
        (Verdict.PASSED,),
    ),
    Attack("fork_bomb", "import os\ndef run(x, weight, out):\n    while True:\n        os.fork()\n", LATE),
    Attack(
        "segfault_in_the_second_workload",
        EARLY
        + "import ctypes\ndef run(x, weight, out):\n    if x.shape[0] == 2048:\n        ctypes.string_at(0)\n    honest(x, weight, out)\n",
        ERROR,
        problem="linear_twice",
    ),
)


@pytest.fixture(scope="module", autouse=True)
def _reference_is_running(courts: GpuCourts) -> None:
    """Judge an honest solution: the first evaluation of a problem also starts its reference, which takes time."""
    assert courts.real(HONEST["linear"], max_judge_s=60.0).verdict is Verdict.PASSED


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(fault: Attack, courts: GpuCourts) -> None:
    answer = courts.real(fault, max_judge_s=20.0)
    assert answer.verdict in fault.caught, answer.reason
    if fault.problem == "linear_twice":
        assert [str(workload.verdict) for workload in answer.workloads] == ["PASSED", "RUNTIME_ERROR"]
    begin = time.monotonic()
    after = courts.real(HONEST["linear"], max_judge_s=60.0)
    assert after.verdict is Verdict.PASSED, after.reason
    assert time.monotonic() - begin < _USABLE_S
