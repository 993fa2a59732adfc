"""The Triton, CuTe DSL and C++ samples of the documentation pack compile for every target without a GPU.

test_documentation.py has the CUDA C++ samples; tests/gpu/test_documentation.py judges the samples for the GPU present.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.agents.documentation import PACK

NEEDS = "needs {}: pip install 'kernel-harness[samples]', which `make test-long` does"
BLOCK = re.compile(r"^```(triton|cute) (\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)

TRITON_HEADER = "import triton\nimport triton.language as tl\n\n\n"
TRITON = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

file, name, architecture, constants, types = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(json.loads, sys.argv[4:])
spec = importlib.util.spec_from_file_location("sample", file)
sample = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sample)
kernel = getattr(sample, name)
types = {"M": "i32", "N": "i32", "K": "i32", **types, **dict.fromkeys(constants, "constexpr")}
signature = {argument: types.get(argument, "*bf16") for argument in kernel.arg_names}
source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 8})
print(name, len(compiled.asm["cubin"]), "bytes of cubin")
"""
TRITON_SAMPLES: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "rmsnorm": ({"HIDDEN": 4096, "BLOCK": 4096}, {}),
    "gemm": ({"BM": 64, "BN": 64, "BK": 32}, {}),
    "softmax": ({"COLUMNS": 3000, "BLOCK": 4096}, {}),
    "persistent_gemm": ({"N": 4096, "K": 4096, "BM": 128, "BN": 128, "BK": 64, "TALL": 8}, {}),
    "scaled": ({"BM": 128, "BN": 128, "BK": 128}, {"x": "*fp8e4nv", "w": "*fp8e4nv", "xs": "*u8", "ws": "*u8"}),
}
"""Kernel -> values of its constants, and the types of the arguments that are not bf16 pointers or sizes."""

CUTE_HEADER = (
    "import cutlass\nfrom cutlass import cute, pipeline\nfrom cutlass.cute.nvgpu import cpasync\n"
    "from cutlass.utils import hopper_helpers\n\n\n"
)
CUTE_DSL = """
import importlib.util, json, sys
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

spec = importlib.util.spec_from_file_location("sample", sys.argv[1])
sample = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sample)
tensors = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in json.loads(sys.argv[3])]
views = [from_dlpack(tensor, assumed_align=16) for tensor in tensors]
compiled = cute.compile(getattr(sample, sys.argv[2]), *views, *json.loads(sys.argv[4]))
print("has device code:", compiled.has_gpu_module)
"""
CUTE_SAMPLES: dict[str, tuple[list[tuple[tuple[int, ...], str]], list[float]]] = {
    "cute_dsl_rmsnorm": ([((17, 4096), "bfloat16"), ((4096,), "bfloat16"), ((17, 4096), "bfloat16")], [4096, 256]),
    "cute_dsl_gemm": ([((300, 4096), "bfloat16"), ((4096, 4096), "bfloat16"), ((300, 4096), "bfloat16")], [132]),
    "scale": ([((17, 4096), "bfloat16"), ((17, 4096), "bfloat16")], [2.0]),
    "product": ([((256, 512), "bfloat16"), ((128, 512), "bfloat16"), ((256, 128), "bfloat16")], []),
    "ring": ([((300, 4096), "bfloat16"), ((300,), "float32")], [132]),
}
"""Example or page sample -> shapes and dtypes of its tensors, and its other arguments."""


def output_of(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def page_samples(kind: str) -> dict[str, str]:
    pages = [file.read_text() for file in sorted(PACK.glob("*.md"))]
    return {name: code for page in pages for language, name, code in BLOCK.findall(page) if language == kind}


def sample_file(kind: str, name: str, header: str, tmp_path: Path) -> Path:
    example = PACK / "examples" / (f"{kind}_{name}" if kind == "triton" else name) / "kernel.py"
    if example.is_file():
        return example
    file = tmp_path / "sample.py"
    file.write_text(header + page_samples(kind)[name])
    return file


def compiled_cute(name: str, architecture: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = sample_file("cute", name, CUTE_HEADER, tmp_path)
    function = "launch" if file.parent.parent.name == "examples" else f"launch_{name}"
    tensors, scalars = (json.dumps(part) for part in CUTE_SAMPLES[name])
    environment = {"CUTE_DSL_ARCH": architecture, "CUTE_DSL_CACHE_DIR": str(tmp_path)}
    return output_of(CUTE_DSL, str(file), function, tensors, scalars, **environment)


def test_every_python_sample_of_the_pack_is_one_of_these() -> None:
    examples = {path.parent.name for path in PACK.glob("examples/*/kernel.py")}
    assert {name for name in examples if name.startswith("triton_")} == {"triton_rmsnorm"}
    assert set(page_samples("triton")) == set(TRITON_SAMPLES) - {"rmsnorm"}
    assert set(page_samples("cute")) | {name for name in examples if "cute" in name} == set(CUTE_SAMPLES)


def test_a_page_has_no_code_that_no_test_compiles() -> None:
    compiled = re.compile(r"cuda( sm_90a)?( sm_100a)?|triton \w+|cute \w+|cpp|python|yaml")
    for file in PACK.glob("*.md"):
        for fence in re.findall(r"^```(.+)$", file.read_text(), re.MULTILINE):
            assert compiled.fullmatch(fence), f"{file.name}: ```{fence}"


@pytest.mark.parametrize("page", sorted(file.name for file in PACK.glob("*.md") if "```python" in file.read_text()))
def test_a_piece_of_python_runs(page: str) -> None:
    for code in re.findall(r"^```python\n(.*?)^```", (PACK / page).read_text(), re.DOTALL | re.MULTILINE):
        completed = output_of(code)
        assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_the_pieces_of_cpp_compile(level: str, tmp_path: Path) -> None:
    pieces = re.findall(r"^```cpp\n(.*?)^```", (PACK / "80_cpu.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(pieces) == 3
    flags = ["-mavx512bf16"] if level == "x86-64-v4" else []
    for number, code in enumerate(pieces):
        source = tmp_path / f"piece_{number}.cpp"
        source.write_text(code)
        command = [
            "g++",
            "-std=c++17",
            "-O1",
            f"-march={level}",
            *flags,
            "-Wno-psabi",
            "-c",
            str(source),
            "-o",
            "/dev/null",
        ]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert completed.returncode == 0, completed.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=NEEDS.format("triton"))
@pytest.mark.parametrize("architecture", ["90", "100"])
@pytest.mark.parametrize("kernel", sorted(TRITON_SAMPLES))
def test_a_triton_sample_compiles(kernel: str, architecture: str, tmp_path: Path) -> None:
    sample = sample_file("triton", kernel, TRITON_HEADER, tmp_path)
    constants, types = (json.dumps(part) for part in TRITON_SAMPLES[kernel])
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_DEFAULT_FP_FUSION": "1"}
    completed = output_of(TRITON, str(sample), kernel, architecture, constants, types, **environment)
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-4000:]
    assert re.fullmatch(rf"{kernel} [1-9]\d{{3,}} bytes of cubin\n", completed.stdout), completed.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason=NEEDS.format("nvidia-cutlass-dsl"))
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", sorted(set(CUTE_SAMPLES) - {"cute_dsl_gemm"}))
def test_a_cute_dsl_sample_compiles(name: str, architecture: str, tmp_path: Path) -> None:
    completed = compiled_cute(name, architecture, tmp_path)
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-4000:]
    assert "has device code: True" in completed.stdout, completed.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason=NEEDS.format("nvidia-cutlass-dsl"))
def test_the_wgmma_sample_in_cute_dsl_compiles_for_sm_90a_only(tmp_path: Path) -> None:
    hopper, blackwell = (compiled_cute("cute_dsl_gemm", name, tmp_path) for name in ("sm_90a", "sm_100a"))
    assert "has device code: True" in hopper.stdout, hopper.stdout[-2000:] + hopper.stderr[-4000:]
    assert blackwell.returncode != 0
    assert "CUTE_DSL_ARCH matches" in blackwell.stdout + blackwell.stderr
