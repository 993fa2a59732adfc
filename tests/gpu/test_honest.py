"""Honest solutions of every kind pass three times in a row, and none is rejected as too fast."""

from __future__ import annotations

import pytest

from harness.judge.build.toolkit import seek_nvcc
from harness.model.verdict import Trust, Verdict
from tests.gpu.cases import Attack
from tests.gpu.conftest import GpuCourts
from tests.gpu.controls import CONTROLS
from tests.judge.extensions import NEEDS_NVCC


@pytest.mark.parametrize("run", [1, 2, 3], ids=lambda run: f"run{run}")
@pytest.mark.parametrize("solution", CONTROLS, ids=lambda solution: solution.name)
def test_passes(solution: Attack, run: int, courts: GpuCourts) -> None:
    del run
    if solution.language == "cuda_cpp" and seek_nvcc() is None:
        pytest.skip(NEEDS_NVCC)
    answer = courts.real(solution, max_judge_s=60.0)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert (answer.trust is Trust.SEALED) == (solution.language == "cuda")
    for workload in answer.workloads:
        assert workload.latency_us is not None
        assert workload.floor_us is None or workload.floor_us <= workload.latency_us
        assert workload.checked >= 200
