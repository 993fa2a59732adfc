"""Module-scope variables of real cubins, as their symbol tables name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.runner.cubin import (
    MAX_VARIABLE_BYTES,
    MalformedCubinError,
    ModuleVariable,
    check_size,
    module_variables,
)
from harness.runner.driver import CudaError
from harness.runner.launcher import copy_methods
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
    assert sorted(variables.values()) == [(4, False), (16, True), (4000, False)]
    assert variables["counter"] == ModuleVariable(4, is_constant=False)


def test_a_kernel_without_variables_has_none(tmp_path: Path) -> None:
    assert module_variables(compiled('extern "C" __global__ void run(float* x) { x[0] = 1; }', tmp_path)) == {}


def test_variables_that_are_too_large_are_refused(tmp_path: Path) -> None:
    source = SOURCE.replace("kept[1000]", f"kept[{MAX_VARIABLE_BYTES // 4}]")
    with pytest.raises(MalformedCubinError, match="take 64 MiB, more than 64: use a workspace"):
        check_size(compiled(source, tmp_path))


@pytest.mark.parametrize("data", [b"", b"cubin", b"\x7fELF", b"\x7fELF" + b"\xff" * 200], ids=range(4))
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedCubinError):
        module_variables(data)


def test_few_variables_are_copied_by_the_driver() -> None:
    variables = {"counter": ModuleVariable(4, is_constant=False), "table": ModuleVariable(16, is_constant=True)}
    assert copy_methods(variables) == (["counter", "table"], [])


def test_of_many_variables_the_driver_copies_the_constants() -> None:
    variables = {f"v{number}": ModuleVariable(8, is_constant=number % 8 == 0) for number in range(800)}
    copied, launched = copy_methods(variables)
    assert (len(copied), len(launched)) == (100, 700)
    assert {"v0", "v8"} <= set(copied)


def test_too_many_constants_are_refused() -> None:
    with pytest.raises(CudaError, match="300 module-scope variables, 300 of them __constant__, more than 256"):
        copy_methods({f"v{number}": ModuleVariable(8, is_constant=True) for number in range(300)})


def test_a_header_of_the_toolkit_defines_hundreds_of_constants(tmp_path: Path) -> None:
    """A copy of the driver for each would fill the device's queue, which is held until a call is complete."""
    source = '#include <cooperative_groups.h>\nextern "C" __global__ void run(float* x) { x[0] = 1; }'
    variables = module_variables(compiled(source, tmp_path))
    assert len(variables) > 256
    assert not any(variable.is_constant for variable in variables.values())
