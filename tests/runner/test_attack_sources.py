"""Sources of the GPU's attacks and controls, as far as a machine without a GPU can check them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.formats.problems import load_problem
from harness.formats.solutions import check_solution, load_solution
from harness.judge.build.cuda_builder import plans_of
from tests.gpu.attack_kernels import KERNELS
from tests.gpu.attacks import ATTACKS
from tests.gpu.cases import Attack, write_problem
from tests.gpu.controls import CONTROLS
from tests.runner.test_nvrtc import compile_cuda

SOLUTIONS = (*ATTACKS, *CONTROLS)
SEALED = [solution for solution in SOLUTIONS if solution.language == "cuda"]


@pytest.mark.parametrize("problem", ["linear", "linear_twice", "norm", "mean"])
def test_solutions_fit_their_problem(problem: str, tmp_path: Path) -> None:
    loaded = load_problem(write_problem(tmp_path, problem))
    for number, solution in enumerate(item for item in SOLUTIONS if item.problem == problem):
        loaded_solution = load_solution(solution.write(tmp_path / str(number), {}))
        assert check_solution(loaded_solution, loaded.definition) == [], solution.name
        if solution.language == "cuda":
            assert plans_of(loaded, loaded_solution), solution.name
        elif solution.language != "cuda_cpp":
            compile(textwrap.dedent(solution.source), solution.name, "exec")


def test_kernels_of_attacks_compile(tmp_path: Path) -> None:
    _compiles(KERNELS, ["norm_rows", "watch", "answer_calls"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("solution", SEALED, ids=lambda solution: solution.name)
def test_sealed_solutions_compile(solution: Attack, tmp_path: Path) -> None:
    _compiles(solution.source, [launch["kernel"] for launch in solution.launch or ({"kernel": "run"},)], tmp_path)


def _compiles(source: str, kernels: list[str], directory: Path) -> None:
    path = directory / "kernel.cu"
    path.write_text(source)
    code = compile_cuda(path, directory, "sm_90a", kernels, ["-DAXIS_K=1024"])
    log = (directory / "compile.log").read_text()
    assert code == 0, log
    assert "warning" not in log, log


@pytest.mark.slow
def test_defences_that_are_switched_off_are_where_they_were() -> None:
    """The defences are switched off in a separate process, which they change."""
    names = "from tests.gpu import undefended as u; print(*u.DEFENCES)"
    code = f"{names}; u.forget_the_floor(); [off() for off in u.DEFENCES.values()]"
    root = Path(__file__).parents[2]
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert {name for attack in ATTACKS for name in attack.off} == set(completed.stdout.split())
