"""Module-scope variables of real cubins, as their symbol tables name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.runner.module_variables import MOST_BYTES, MalformedCubinError, check_size, module_variables
from tests.runner.test_nvrtc import compile_cuda

SOURCE = """
__device__ unsigned counter = 7;
static __device__ float kept[1000];
__constant__ float table[4] = {1, 2, 3, 4};
extern "C" __global__ void run(float* x) {
    __shared__ float shared[32];
    shared[threadIdx.x] = x[0];
    if (atomicAdd(&counter, 1) > 3) kept[threadIdx.x] = table[threadIdx.x & 3];
    x[0] = kept[3] + shared[3];
}
"""


def compiled(source: str, directory: Path) -> bytes:
    file = directory / "kernel.cu"
    file.write_text(source)
    assert compile_cuda(file, directory, "sm_90a", ["run"], []) == 0, (directory / "compile.log").read_text()
    return (directory / "kernel.cubin").read_bytes()


def test_device_and_constant_variables_are_listed_and_shared_memory_is_not(tmp_path: Path) -> None:
    variables = module_variables(compiled(SOURCE, tmp_path))
    assert sorted(variables.values()) == [4, 16, 4000]
    assert variables["counter"] == 4


def test_a_kernel_without_variables_has_none(tmp_path: Path) -> None:
    assert module_variables(compiled('extern "C" __global__ void run(float* x) { x[0] = 1; }', tmp_path)) == {}


def test_variables_that_are_too_large_are_refused(tmp_path: Path) -> None:
    source = SOURCE.replace("kept[1000]", f"kept[{MOST_BYTES // 4}]")
    with pytest.raises(MalformedCubinError, match="take 64 MiB, more than 64: use a workspace"):
        check_size(compiled(source, tmp_path))


@pytest.mark.parametrize("data", [b"", b"cubin", b"\x7fELF", b"\x7fELF" + b"\xff" * 200], ids=range(4))
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedCubinError):
        module_variables(data)
