"""Every CUDA example compiles for Hopper and Blackwell, without a GPU or a driver; errors keep the user's line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.judge.build.toolkit import find_toolkit
from harness.runner import nvrtc

EXAMPLES = Path(__file__).parents[2] / "examples" / "cuda"


def compile_cuda(
    source: Path, out: Path, architecture: str, kernels: list[str], options: list[str], library: Path | None = None
) -> int:
    toolkit = find_toolkit()
    request = {
        "library": str(library or toolkit.library),
        "includes": [str(path) for path in toolkit.includes],
        "source": str(source),
        "architecture": architecture,
        "options": ["-std=c++17", "-default-device", *options],
        "kernels": kernels,
    }
    (out / "request.json").write_text(json.dumps(request))
    command = [sys.executable, nvrtc.__file__, str(out / "request.json"), str(out)]
    return subprocess.run(command, timeout=120, check=False).returncode


@pytest.mark.parametrize("architecture", ["sm_90a", pytest.param("sm_100a", marks=pytest.mark.slow)])
@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/solution.yaml")))
def test_examples_compile(example: str, architecture: str, tmp_path: Path) -> None:
    spec: dict[str, Any] = yaml.safe_load((EXAMPLES / example / "solution.yaml").read_text())
    macros = [f"-D{name}={value}" for name, value in {"AXIS_hidden": 4096, **spec["params"]}.items()]
    kernels = [launch["kernel"] for launch in spec["launch"]]
    code = compile_cuda(EXAMPLES / example / "kernel.cu", tmp_path, architecture, kernels, macros)
    assert code == 0, (tmp_path / "compile.log").read_text()
    assert (tmp_path / "kernel.cubin").read_bytes().startswith(b"\x7fELF")
    assert set(json.loads((tmp_path / "names.json").read_text())["symbols"]) == set(kernels)


def test_a_compile_error_is_the_compilers_own_with_the_users_line(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text('extern "C" __global__ void k(float* y) {\n    y[0] = undefined_name;\n}\n')
    assert compile_cuda(source, tmp_path, "sm_90a", ["k"], []) == 1
    assert 'kernel.cu(2): error: identifier "undefined_name" is undefined' in (tmp_path / "compile.log").read_text()


def test_a_kernel_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text('extern "C" __global__ void k(float* y) { y[0] = 1; }\n')
    assert compile_cuda(source, tmp_path, "sm_90a", ["j"], []) == 1
    assert '"j" is undefined' in (tmp_path / "compile.log").read_text()


def test_a_compiler_that_does_not_find_its_built_in_functions_by_itself_is_given_them(tmp_path: Path) -> None:
    # As in NVIDIA's wheels of CUDA 13.0, which PyTorch's wheels depend on: the library has no RPATH.
    installed = find_toolkit().library
    library = tmp_path / installed.name
    library.write_bytes(installed.read_bytes().replace(b"\0$ORIGIN\0", b"\0/absent\0"))
    for part in installed.parent.glob("libnvrtc-builtins.so*"):
        (tmp_path / part.name).symlink_to(part)
    source = tmp_path / "kernel.cu"
    source.write_text('extern "C" __global__ void k(float* y) { y[0] = 1; }\n')
    code = compile_cuda(source, tmp_path, "sm_90a", ["k"], [], library)
    assert code == 0, (tmp_path / "compile.log").read_text()
