"""A judge with its own locks, and small problems and solutions on disk for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.formats.problems import problem_digest
from harness.model.config import SandboxKind
from harness.model.judging import JudgeAnswer, JudgeRequest
from harness.workspace.blocking_judge import JudgeProcess, judge_process

SCALE = "def run(x, factor):\n    return x * factor\n"
KERNEL = """
#include <cstdint>
extern "C" void scale(const float* x, double factor, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * (float)factor;
}
"""
"""An honest solution of the problem that `write_problem` writes."""


@contextmanager
def judge_with_own_locks(
    device: str,
    directory: Path,
    sandbox: SandboxKind = "bubblewrap",
    *,
    cache: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[JudgeProcess]:
    """Yield a judge whose locks, and whose cache by default, are below a directory."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HARNESS_LOCK_DIR": str(directory / "locks"), **(environment or {})}.items():
            patch.setenv(name, value)
        with judge_process(device, cache or directory / "cache", sandbox) as process:
            yield process


def write_problem(
    directory: Path, *, sizes: tuple[int, ...] = (40_000,), reference: str = SCALE, atol: float = 1e-5
) -> Path:
    """Write the problem `y = x * factor` on float32 vectors, with one workload for each size."""
    root = directory / "made" / "scale"
    root.mkdir(parents=True)
    definition = {
        "name": "scale",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": {"shape": ["n"], "dtype": "float32"}, "factor": {"shape": None, "dtype": "float32"}},
        "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
        "reference": reference,
    }
    (root / "definition.json").write_text(json.dumps(definition))
    inputs = {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 1.5}}
    tolerance = {"max_atol": atol, "max_rtol": 1e-5, "required_matched_ratio": 1.0}
    lines = [
        json.dumps({"uuid": f"n{size}", "axes": {"n": size}, "inputs": inputs, "tolerance": tolerance})
        for size in sizes
    ]
    (root / "workload.jsonl").write_text("\n".join(lines) + "\n")
    return root


def write_cpp(directory: Path, source: str = KERNEL, **spec: Any) -> Path:
    """Write a C++ solution whose function is `scale`."""
    return _write(directory, "kernel.cpp", source, {"language": "cpp", "entry": "kernel.cpp::scale", **spec})


def write_pytorch(directory: Path, source: str, **spec: Any) -> Path:
    """Write a PyTorch solution whose function is `run`."""
    return _write(directory, "kernel.py", source, {"language": "pytorch", "entry": "kernel.py::run", **spec})


def _write(directory: Path, name: str, source: str, spec: Mapping[str, Any]) -> Path:
    directory.mkdir(parents=True)
    (directory / name).write_text(source)
    (directory / "solution.yaml").write_text(yaml.safe_dump(dict(spec)))
    return directory


def judge(process: JudgeProcess, problem: Path, solution: Path | None, **settings: Any) -> JudgeAnswer:
    """Request an evaluation with wide intervals, or a measurement of the baselines if there is no solution."""
    return process.ask(judge_request(problem, solution, **settings), lambda _: None)


def judge_request(problem: Path, solution: Path | None, **settings: Any) -> JudgeRequest:
    """Return the request that `judge` sends."""
    return JudgeRequest(
        id="1",
        kind="evaluation" if solution else "baseline",
        problem="/".join(problem.parts[-2:]),
        problem_dir=str(problem),
        problem_digest=problem_digest(problem),
        solution_dir=str(solution) if solution else None,
        **{"half_width": 0.5, "max_judge_s": 120.0, **settings},
    )
