"""Compilation of sealed CUDA to a cubin for Hopper, which needs no GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.errors import ConfigurationError
from harness.formats.solutions import load_solution
from harness.judge.build import cuda_builder
from harness.judge.build.builder import BuildFailed
from harness.judge.build.cuda_builder import SealedBuild, build_cuda
from harness.judge.build.toolkit import find_toolkit
from harness.model.problem import Problem
from tests.judge.problem_in_memory import problem, tensor

pytestmark = pytest.mark.usefixtures("own_locks")

KERNEL = (
    'extern "C" __global__ void run(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * AXIS_n * SCALE; }\n'
)


@pytest.fixture(autouse=True)
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_builder, "architecture", lambda: "sm_90a")


@pytest.fixture
def sample_problem() -> Problem:
    return problem(
        {"x": tensor("float32", "n")}, {"y": tensor("float32", "n")}, "def run(x):\n    return x\n", {"n": 7}
    )


def build(sample_problem: Problem, tmp_path: Path, source: str = KERNEL) -> SealedBuild:
    directory = tmp_path / "solution"
    directory.mkdir(exist_ok=True)
    (directory / "kernel.cu").write_text(source)
    launch = {"kernel": "run", "grid": [1], "block": ["n"], "args": ["x", "y"]}
    spec = {"language": "cuda", "entry": "kernel.cu::run", "launch": [launch], "params": {"SCALE": 3}}
    (directory / "solution.yaml").write_text(yaml.safe_dump(spec))
    return build_cuda(sample_problem, load_solution(directory), cache_dir=tmp_path / "cache", sandbox="bubblewrap")


def test_a_cubin_is_compiled_once_and_again_after_tampering(sample_problem: Problem, tmp_path: Path) -> None:
    first = build(sample_problem, tmp_path)
    cubin = first.directory / "kernel.cubin"
    content = cubin.read_bytes()
    assert not first.cached
    assert content.startswith(b"\x7fELF")
    assert json.loads((first.directory / "names.json").read_text())["symbols"] == {"run": "run"}
    assert build(sample_problem, tmp_path).cached
    cubin.write_bytes(content + b"x")
    rebuilt = build(sample_problem, tmp_path)
    assert (rebuilt.cached, rebuilt.directory, cubin.read_bytes()) == (False, first.directory, content)


def test_a_compiler_error_is_quoted_with_the_users_line_numbers(sample_problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(BuildFailed) as failed:
        build(sample_problem, tmp_path, KERNEL.replace("SCALE", "FACTOR"))
    assert failed.value.reason.startswith('kernel.cu(1): error: identifier "FACTOR" is undefined')
    assert not list((tmp_path / "cache" / "cubins").iterdir())


def test_a_compiler_that_cannot_be_loaded_is_no_compile_error(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "toolkit" / "libnvrtc.so"
    broken.parent.mkdir()
    broken.write_text("not a library")
    real = find_toolkit()
    monkeypatch.setattr(cuda_builder, "find_toolkit", lambda: replace(real, library=broken))
    with pytest.raises(ConfigurationError, match=r"the compiler cannot be used here: .*libnvrtc\.so"):
        build(sample_problem, tmp_path)


def test_a_compiler_that_takes_too_long_is_stopped(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_builder, "BUILD_S", 0.01)
    with pytest.raises(BuildFailed, match="the compiler was stopped after"):
        build(sample_problem, tmp_path)
