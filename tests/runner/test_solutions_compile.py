"""Every CUDA solution that comes with a problem compiles for Hopper and Blackwell, and its plan fits every workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.formats.problems import load_problem
from harness.formats.solutions import check_solution, load_solution
from harness.model.axis_types import ConstAxis
from harness.model.launches import resolve
from harness.model.plan import Launch, WorkspaceSpec
from harness.model.problem import ScalarInput
from tests.runner.test_nvrtc import compile_cuda

PROBLEMS = Path(__file__).parents[2] / "problems"
SOLUTIONS = sorted(
    path.parent.relative_to(PROBLEMS).as_posix()
    for path in PROBLEMS.glob("*/*/solutions/*/solution.yaml")
    if "language: cuda\n" in path.read_text()
)
HOPPER_ONLY = "sm_90a only"
"""What the notes of a solution say whose instructions exist on no other architecture."""


@pytest.mark.parametrize("architecture", ["sm_90a", pytest.param("sm_100a", marks=pytest.mark.slow)])
@pytest.mark.parametrize("solution", SOLUTIONS)
def test_compiles(solution: str, architecture: str, tmp_path: Path) -> None:
    spec = load_solution(PROBLEMS / solution).spec
    problem = load_problem((PROBLEMS / solution).parents[1])
    if architecture != "sm_90a" and HOPPER_ONLY in (spec.notes or ""):
        return
    axes = {f"AXIS_{name}": axis.value for name, axis in problem.definition.axes.items() if isinstance(axis, ConstAxis)}
    macros = [f"-D{name}={value}" for name, value in (axes | dict(spec.params)).items()]
    kernels = sorted({str(launch["kernel"]) for launch in spec.launch})
    code = compile_cuda(PROBLEMS / solution / spec.file, tmp_path, architecture, kernels, macros)
    log = (tmp_path / "compile.log").read_text()
    assert code == 0, log
    assert "warning" not in log, log
    assert set(json.loads((tmp_path / "names.json").read_text())["symbols"]) == set(kernels)


@pytest.mark.parametrize("solution", SOLUTIONS)
def test_the_plan_fits_every_workload(solution: str) -> None:
    loaded = load_solution(PROBLEMS / solution)
    problem = load_problem((PROBLEMS / solution).parents[1])
    assert check_solution(loaded, problem.definition) == []
    launches = tuple(Launch.model_validate(launch) for launch in loaded.spec.launch)
    spaces = {name: WorkspaceSpec.model_validate(space) for name, space in loaded.spec.workspaces.items()}
    for workload in problem.workloads:
        scalars = {name: given.value for name, given in workload.inputs.items() if isinstance(given, ScalarInput)}
        scalars |= {name: 1.0 for name, spec in problem.definition.inputs.items() if spec.shape is None}
        plan = resolve(launches, spaces, problem.definition, problem.sizes(workload), scalars, loaded.spec.params)
        assert plan.launches
