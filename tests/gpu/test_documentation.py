"""Every example of the agents' documentation pack that this GPU can run is judged, and passes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.agents.documentation import PACK
from harness.store.solutions import load_solution

PROBLEMS = Path(__file__).parents[2] / "problems"
NEEDS = {"triton": "triton", "cute_dsl": "cutlass"}


def fits(name: str) -> bool:
    """Whether this machine has what an example needs: its architecture's instructions, its language."""
    spec = load_solution(PACK / "examples" / name).spec
    only = (spec.notes or "").partition(" only")[0]
    return only in {"", spec.notes, "sm_90a"} and importlib.util.find_spec(NEEDS.get(spec.language, "json")) is not None


EXAMPLES = [name for name in sorted(path.parent.name for path in PACK.glob("examples/*/solution.yaml")) if fits(name)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_passes(name: str, tmp_path: Path) -> None:
    notes = load_solution(PACK / "examples" / name).spec.notes or ""
    problem = PROBLEMS / notes.rpartition("for problem ")[2]
    command = [sys.executable, "-m", "harness", "evaluate", str(PACK / "examples" / name), "--problem", str(problem)]
    command += ["--device", "cuda", "--against", "eager", "--half-width", "0.05", "--json"]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(done.stdout)["verdict"] == "PASSED"
