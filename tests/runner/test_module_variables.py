"""Module-scope variables of real cubins, as their symbol tables name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.runner.module_variables import MOST_BYTES, MalformedCubinError, check_size, module_variables
from harness.runner.variable_snapshot import copied_ranges, neighbours
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


def test_variables_without_gaps_are_neighbours() -> None:
    scattered = [(4096, 4), (1000, 8), (1016, 4), (1010, 1), (1100, 400), (9000, 16)]
    assert neighbours(scattered) == [
        [(1000, 8), (1010, 1), (1016, 4), (1100, 400)], [(4096, 4)], [(9000, 16)]
    ]  # fmt: skip


def test_a_variable_inside_another_changes_nothing() -> None:
    assert neighbours([(0, 1000), (100, 8), (1010, 4)]) == [[(0, 1000), (100, 8), (1010, 4)]]
    assert copied_ranges([(0, 1000), (100, 8)], lambda *_: True) == [(0, 1000)]


@pytest.mark.parametrize("border", [800, 2048, 5600])
def test_ranges_do_not_cross_the_drivers_allocations(border: int) -> None:
    variables = [(8 * number, 8) for number in range(743)]
    ranges = copied_ranges(variables, lambda address, size: address >= border or address + size <= border)
    assert len(ranges) < 25
    assert [address + size for address, size in ranges[:-1]] == [address for address, _ in ranges[1:]]
    assert border in {address for address, _ in ranges}
    assert sum(size for _, size in ranges) == 8 * 743


def test_a_header_of_the_toolkit_defines_hundreds_of_neighbours(tmp_path: Path) -> None:
    """The reason to merge: one copy for each would fill the device's queue, which is held until a call is complete."""
    source = '#include <cooperative_groups.h>\nextern "C" __global__ void run(float* x) { x[0] = 1; }'
    assert len(module_variables(compiled(source, tmp_path))) > 256
