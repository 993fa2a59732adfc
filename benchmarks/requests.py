"""Requests of the benchmarks to a judge."""

from __future__ import annotations

from pathlib import Path

from harness.formats.problems import load_problem
from harness.model.judging import JudgeRequest


def evaluation_request(
    problem_dir: Path, solution_dir: Path, variant: str = "eager", *, suite: str = "bench", **settings: object
) -> JudgeRequest:
    """Return the request for one evaluation.

    Args:
        problem_dir: the problem's directory.
        solution_dir: the solution's directory.
        variant: baseline of every workload, by both clocks.
        suite: first part of the problem's key.
        settings: further fields of the request; by default the half-width is 0.005 and the time limit 60 s.
    """
    loaded = load_problem(problem_dir, key=f"{suite}/{problem_dir.name}")
    variants = {workload.uuid: variant for workload in loaded.workloads}
    return JudgeRequest.model_validate(
        {
            "id": "1", "kind": "evaluation", "problem": loaded.key, "problem_dir": str(problem_dir),
            "problem_digest": loaded.digest, "solution_dir": str(solution_dir), "half_width": 0.005,
            "max_judge_s": 60.0, "baseline": variants, "sealed_baseline": variants, **settings,
        }
    )  # fmt: skip
