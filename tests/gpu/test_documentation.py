"""Every example of the agents' documentation pack that this GPU can run is judged and passes.

Some have a goal on an H200: a share of the library's speed or of the bandwidth bound.

`python -m pytest tests/gpu/test_documentation.py -k share -s` prints the shares, a line for each workload that counts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.agents.documentation import PACK
from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from tests.gpu.conftest import answer_on, evaluated

PROBLEMS = Path(__file__).parents[2] / "problems"
SAMPLE_PROBLEMS = Path(__file__).parent / "sample_problems"
NEEDS = {"triton": "triton", "cute_dsl": "cutlass"}
EXAMPLES = sorted(path.parent.name for path in PACK.glob("examples/*/solution.yaml"))


@dataclass(frozen=True)
class SpeedGoal:
    """Goal of an example on an H200, for the workloads that are large enough to be bound by it."""

    example: str
    problem: Path
    of: str
    """`baseline_us`: time of the library behind the eager reference; `sol_us`: bytes over the datasheet's bandwidth."""
    least_share: float
    counts: Callable[[dict[str, int]], bool]


GOALS = (
    SpeedGoal(
        "hopper_gemm_fast", PROBLEMS / "gemm/bf16_n4096_k4096", "baseline_us", 0.75, lambda axes: axes["m"] >= 2048
    ),
    SpeedGoal(
        "hopper_attention",
        SAMPLE_PROBLEMS / "attention/causal_d128",
        "baseline_us",
        0.60,
        lambda axes: axes["tokens"] >= 4096,
    ),
    SpeedGoal(
        "paged_decode",
        PROBLEMS / "attention/gqa_paged_decode",
        "sol_us",
        0.80,
        lambda axes: axes["batch"] * axes["max_pages"] >= 1 << 14,
    ),
    SpeedGoal(
        "fused_norm_cuda",
        SAMPLE_PROBLEMS / "norm/rmsnorm_h4096_large",
        "sol_us",
        0.80,
        lambda axes: axes["rows"] >= 1 << 14,
    ),
)


def problem_of(notes: str) -> Path:
    key = notes.rpartition("for problem ")[2]
    return next(root / key for root in (PROBLEMS, SAMPLE_PROBLEMS) if (root / key).is_dir())


def skip_unless_it_runs_here(example: str) -> str:
    """Skip what this GPU or environment cannot run; return the example's notes otherwise."""
    from harness.judge.build.cuda_builder import architecture

    spec = load_solution(PACK / "examples" / example).spec
    notes, package = spec.notes or "", NEEDS.get(spec.language)
    only, _, limited = notes.partition(" only")
    if limited and only != architecture():
        pytest.skip(f"{only} only; this GPU is {architecture()}")
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"language {spec.language} needs the package {package}")
    return notes


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_passes(name: str, tmp_path: Path) -> None:
    problem = problem_of(skip_unless_it_runs_here(name))
    assert evaluated(PACK / "examples" / name, problem, tmp_path, within_s=300) == "PASSED"


@pytest.mark.parametrize("goal", GOALS, ids=[goal.example for goal in GOALS])
def test_a_fast_example_reaches_its_share_on_an_h200(goal: SpeedGoal, tmp_path: Path) -> None:
    import torch

    skip_unless_it_runs_here(goal.example)
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip(f"the shares are those of an H200; this is {torch.cuda.get_device_name()}")
    answer = answer_on(PACK / "examples" / goal.example, goal.problem, tmp_path, within_s=300, half_width=0.02)
    assert answer["verdict"] == "PASSED", answer["reason"]
    axes = {workload.uuid: workload.axes for workload in load_problem(goal.problem).workloads}
    counted: list[dict[str, Any]] = [work for work in answer["workloads"] if goal.counts(axes[work["uuid"]])]
    assert counted
    shares = {}
    for work in counted:
        words = " ".join(f"{axis}={size}" for axis, size in axes[work["uuid"]].items())
        shares[words] = work[goal.of] / work["latency_us"]
        reached = f"{work['latency_us']:.1f} us, {shares[words]:.3f} of {goal.of}"
        print(f"{goal.example} {words}: {reached}, goal {goal.least_share}")  # noqa: T201 - what `-s` is for
    assert min(shares.values()) >= goal.least_share, shares
