"""CUDA C++ extensions through both bindings: right ones pass with the bounded clock, wrong ones get their verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.judge.build.toolkit import seek_nvcc
from harness.model.verdict import Trust, Verdict
from tests.gpu.cases import Attack
from tests.gpu.conftest import GpuCourts, evaluated
from tests.gpu.extensions import RIGHT, TVM_FFI, extension
from tests.judge.extensions import NEEDS_NVCC

pytestmark = pytest.mark.skipif(seek_nvcc() is None, reason=NEEDS_NVCC)

_ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent.name for path in (_ROOT / "examples" / "cuda_cpp").glob("*/solution.yaml"))
WRONG = (
    extension(
        "does_not_compile",
        TVM_FFI.replace("x.size(0)", "x.rows()"),
        (Verdict.COMPILE_ERROR,),
        'error: class "tvm::ffi::TensorView" has no member "rows"',
    ),
    extension(
        "misses_a_column", TVM_FFI.replace("norm(x, out)", "norm(x, out, false, 1000)"), (Verdict.INCORRECT_NUMERICAL,)
    ),
    extension(
        "throws",
        TVM_FFI.replace("const DLDevice", 'TVM_FFI_THROW(ValueError) << "not today"; const DLDevice'),
        (Verdict.RUNTIME_ERROR,),
        "ValueError: not today",
    ),
    extension(
        "is_not_exported",
        TVM_FFI.replace("FUNC(run, launch)", "FUNC(walk, launch)  // not run"),
        (Verdict.RUNTIME_ERROR,),
        "no function `run`",
    ),
)


@pytest.mark.parametrize("solution", RIGHT, ids=lambda solution: solution.name)
def test_a_right_extension_passes(solution: Attack, courts: GpuCourts) -> None:
    answer = courts.real(solution, max_judge_s=60.0)
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.trust in {Trust.BOUNDED, Trust.LAUNCH_BOUND}
    for workload in answer.workloads:
        assert workload.latency_us is not None
        assert workload.floor_us is None or workload.floor_us <= workload.latency_us


@pytest.mark.parametrize("solution", WRONG, ids=lambda solution: solution.name)
def test_a_wrong_extension_gets_its_verdict(solution: Attack, courts: GpuCourts) -> None:
    answer = courts.real(solution)
    assert answer.verdict in solution.caught, answer.reason
    assert solution.reason_part in (answer.reason or "")
    if answer.verdict is Verdict.COMPILE_ERROR:
        line = solution.source.splitlines().index(
            next(source_line for source_line in solution.source.splitlines() if "x.rows" in source_line)
        )
        assert f"kernel.cu({line + 1})" in (answer.reason or "")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_passes(name: str, tmp_path: Path) -> None:
    solution, problem = _ROOT / "examples" / "cuda_cpp" / name, _ROOT / "problems/starter/swiglu_h14336"
    assert evaluated(solution, problem, tmp_path, within_s=400) == "PASSED"
