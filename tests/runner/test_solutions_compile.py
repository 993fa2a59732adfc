"""Every CUDA solution that comes with a problem compiles for Hopper and Blackwell, and its plan fits every workload."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.formats.problems import load_problem
from harness.formats.solutions import check_solution, load_solution
from harness.judge.build.report import spills_in_log
from harness.model.axes import ConstAxis
from harness.model.launches import resolve
from harness.model.plan import Launch, WorkspaceSpec
from harness.model.problem import ScalarInput
from tests.runner.ptx import ptx_of
from tests.runner.test_nvrtc import compile_cuda

PROBLEMS = Path(__file__).parents[2] / "problems"
SOLUTIONS = sorted(
    path.parent.relative_to(PROBLEMS).as_posix()
    for path in PROBLEMS.glob("*/*/solutions/*/solution.yaml")
    if "language: cuda\n" in path.read_text()
)
VERBOSE = "--ptxas-options=-v"
WGMMA = [name for name in SOLUTIONS if (PROBLEMS / name / "hopper.cuh").is_file()]
"""Solutions with wgmma, which only sm_90a has, and a path without it."""
VECTORS = ["starter/rmsnorm_h4096", "starter/swiglu_h14336", "llm/rmsnorm_backward", "llm/decoder_mlp_block"]
"""Problems whose solution moves rows of bf16 by 16 bytes."""


@pytest.mark.parametrize("architecture", ["sm_90a", pytest.param("sm_100a", marks=pytest.mark.slow)])
@pytest.mark.parametrize("solution", SOLUTIONS)
def test_compiles(solution: str, architecture: str, tmp_path: Path) -> None:
    compiles(solution, architecture, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("solution", WGMMA)
def test_the_path_without_wgmma_compiles_for_a_hopper_too(solution: str, tmp_path: Path) -> None:
    """An H200 can then judge it in place of a B200."""
    compiles(solution, "sm_90a", tmp_path, "-DMMA_SYNC")


@pytest.mark.parametrize("problem", VECTORS)
def test_rows_are_moved_16_bytes_at_a_time(problem: str) -> None:
    """NVRTC 13.5 splits the copy of a struct of pairs of bf16 into accesses of 4 bytes."""
    file, kernels, macros = build_of(f"{problem}/solutions/h200")
    ptx = ptx_of(file, "compute_90a", kernels, macros)
    loads = set(re.findall(r"\bld\.global\.nc\.([\w.]+)", ptx))
    assert "v4.u32" in loads, loads
    assert not {"u32", "v2.u16", "u16"} & loads
    assert "st.global.u32" not in ptx


def build_of(solution: str) -> tuple[Path, list[str], list[str]]:
    """Return the source, kernels and macros of a solution."""
    spec = load_solution(PROBLEMS / solution).spec
    problem = load_problem((PROBLEMS / solution).parents[1])
    axes = {f"AXIS_{name}": axis.value for name, axis in problem.definition.axes.items() if isinstance(axis, ConstAxis)}
    macros = [f"-D{name}={value}" for name, value in (axes | dict(spec.params)).items()]
    return PROBLEMS / solution / spec.file, sorted({str(launch["kernel"]) for launch in spec.launch}), macros


def compiles(solution: str, architecture: str, tmp_path: Path, *options: str) -> None:
    """Assert that the code compiles without warnings and without spills."""
    file, kernels, macros = build_of(solution)
    code = compile_cuda(file, tmp_path, architecture, kernels, [*macros, *options, VERBOSE])
    log = (tmp_path / "compile.log").read_text()
    assert code == 0, log
    assert "warning" not in log, log
    assert not [spill for spill in spills_in_log(log).values() if any(spill)], log
    assert set(json.loads((tmp_path / "names.json").read_text())["symbols"]) == set(kernels)


@pytest.mark.parametrize("solution", SOLUTIONS)
def test_the_plan_fits_every_workload(solution: str) -> None:
    loaded = load_solution(PROBLEMS / solution)
    problem = load_problem((PROBLEMS / solution).parents[1])
    assert check_solution(loaded, problem.definition) == []
    launches = tuple(Launch.model_validate(launch) for launch in loaded.spec.launch)
    spaces = {name: WorkspaceSpec.model_validate(space) for name, space in loaded.spec.workspaces.items()}
    for workload in problem.workloads:
        scalars = {name: source.value for name, source in workload.inputs.items() if isinstance(source, ScalarInput)}
        scalars |= {name: 1.0 for name, spec in problem.definition.inputs.items() if spec.shape is None}
        plan = resolve(launches, spaces, problem.definition, problem.sizes(workload), scalars, loaded.spec.params)
        assert plan.launches
