"""The Triton and CuTe DSL samples of the documentation pack compile for every target, where there is no GPU.

CUDA C++ samples are in test_documentation.py; tests/gpu/test_documentation.py judges what the GPU at hand can run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.agents.documentation import PACK

pytestmark = pytest.mark.slow
NEEDS = "needs {}: pip install 'kernel-harness[samples]', which `make test-long` does"

TRITON = """
import importlib.util, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

file, name, architecture = sys.argv[1], sys.argv[2], int(sys.argv[3])
spec = importlib.util.spec_from_file_location("sample", file)
sample = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sample)
kernel = getattr(sample, name)
tiles = {"HIDDEN": 4096, "BLOCK": 4096, "BM": 64, "BN": 64, "BK": 32}
constants = {each: tiles[each] for each in kernel.arg_names if each in tiles}
types = {"M": "i32", "N": "i32", "K": "i32", **dict.fromkeys(constants, "constexpr")}
signature = {each: types.get(each, "*bf16") for each in kernel.arg_names}
source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 8})
print(name, len(made.asm["cubin"]), "bytes of cubin")
"""
CUTE_DSL = """
import importlib.util, sys
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

spec = importlib.util.spec_from_file_location("sample", sys.argv[1])
sample = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sample)
tensors = [torch.zeros(shape, dtype=torch.bfloat16) for shape in ((17, 4096), (4096,), (17, 4096))]
views = [from_dlpack(each, assumed_align=16) for each in tensors]
made = cute.compile(sample.launch, *views, 4096, 256)
print("has device code:", made.has_gpu_module)
"""
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
HEADER = "import triton\nimport triton.language as tl\n\n\n"


def compiled(program: str, *arguments: str, **environment: str) -> str:
    """What the program says of its sample."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_every_python_sample_of_the_pack_is_one_of_these() -> None:
    assert {path.parent.name for path in PACK.glob("examples/*/kernel.py")} == {"triton_rmsnorm", "cute_dsl_rmsnorm"}
    pieces = {file.name: BLOCK.findall(file.read_text()) for file in PACK.glob("*.md")}
    assert {name: len(found) for name, found in pieces.items() if found} == {"60_triton.md": 1}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=NEEDS.format("triton"))
@pytest.mark.parametrize("architecture", ["90", "100"])
@pytest.mark.parametrize("kernel", ["rmsnorm", "gemm"])
def test_a_triton_sample_compiles(kernel: str, architecture: str, tmp_path: Path) -> None:
    sample = PACK / "examples/triton_rmsnorm/kernel.py"
    if kernel == "gemm":
        sample = tmp_path / "sample.py"
        sample.write_text(HEADER + BLOCK.findall((PACK / "60_triton.md").read_text())[0])
    cache = str(tmp_path / "cache")
    said = compiled(TRITON, str(sample), kernel, architecture, TRITON_CACHE_DIR=cache, TRITON_DEFAULT_FP_FUSION="1")
    assert re.fullmatch(rf"{kernel} [1-9]\d{{3,}} bytes of cubin\n", said), said


@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason=NEEDS.format("nvidia-cutlass-dsl"))
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100a"])
def test_a_cute_dsl_sample_compiles(architecture: str, tmp_path: Path) -> None:
    sample = PACK / "examples/cute_dsl_rmsnorm/kernel.py"
    said = compiled(CUTE_DSL, str(sample), CUTE_DSL_ARCH=architecture, CUTE_DSL_CACHE_DIR=str(tmp_path))
    assert "has device code: True" in said, said
