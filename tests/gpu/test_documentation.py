"""Every example of the agents' documentation pack that this GPU can run is judged, and passes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness.agents.documentation import PACK
from harness.formats.solutions import load_solution
from tests.gpu.conftest import evaluated

PROBLEMS = Path(__file__).parents[2] / "problems"
NEEDS = {"triton": "triton", "cute_dsl": "cutlass"}
EXAMPLES = sorted(path.parent.name for path in PACK.glob("examples/*/solution.yaml"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_passes(name: str, tmp_path: Path) -> None:
    from harness.judge.cuda_builder import architecture

    spec = load_solution(PACK / "examples" / name).spec
    notes, package = spec.notes or "", NEEDS.get(spec.language)
    only, _, limited = notes.partition(" only")
    if limited and only != architecture():
        pytest.skip(f"{only} only; this GPU is {architecture()}")
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"language {spec.language} needs the package {package}")
    problem = PROBLEMS / notes.rpartition("for problem ")[2]
    assert evaluated(PACK / "examples" / name, problem, tmp_path, within_s=300) == "PASSED"
