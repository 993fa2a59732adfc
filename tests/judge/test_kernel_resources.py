"""Registers, shared memory and spills of compiled kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.formats.ledger_documents import render_entry
from harness.judge.build.report import resources_of_cubin, spills_in_log
from harness.model.counters import KernelResources, resource_lines
from harness.model.verdict import Verdict
from tests.agents.conftest import entry
from tests.runner.test_nvrtc import compile_cuda

_SOURCE = """
extern "C" __global__ void __launch_bounds__(256, 8) spilling(const float* a, float* b, int n) {
    __shared__ float s[512];
    float v[64];
    for (int i = 0; i < 64; i++) v[i] = a[threadIdx.x * 64 + i];
    s[threadIdx.x] = v[3];
    __syncthreads();
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i + 7) % 64] + s[i];
    for (int i = 0; i < 64; i++) b[threadIdx.x * 64 + i] = v[i];
}
template <int N> __global__ void small(float* b) { b[threadIdx.x] = N; }
"""


@pytest.mark.parametrize("architecture", ["sm_90a", pytest.param("sm_100a", marks=pytest.mark.slow)])
def test_the_cubin_and_the_log_agree(architecture: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(_SOURCE)
    kernels = ["small<7>", "spilling"]
    code = compile_cuda(source, tmp_path, architecture, kernels, ["--ptxas-options=-v"])
    log = (tmp_path / "compile.log").read_text()
    assert code == 0, log
    cubin = (tmp_path / "kernel.cubin").read_bytes()
    names = {"spilling": "spilling", "_Z5smallILi7EEvPf": "small<7>"}
    spilling, small = resources_of_cubin(cubin, names, log)
    assert spilling.registers == 32
    assert spilling.shared_bytes == 2048
    assert (spilling.spill_store_bytes or 0) > 100
    assert spilling.local_bytes > 100
    assert f"{spilling.local_bytes} bytes stack frame" in log
    assert (small.kernel, small.shared_bytes, small.local_bytes) == ("small<7>", 0, 0)
    assert (small.spill_store_bytes, small.spill_load_bytes) == (0, 0)
    assert f"Used {small.registers} registers" in log
    first, second = resource_lines((spilling, small))
    assert "SPILLS" in first
    assert second == f"kernel small<7>: {small.registers} registers, 0 B static shared memory, no spills"
    assert "local memory per thread" in resource_lines(resources_of_cubin(cubin, names))[0]


def test_a_broken_cubin_has_no_resources(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(_SOURCE)
    assert compile_cuda(source, tmp_path, "sm_90a", ["spilling"], []) == 0
    cubin = (tmp_path / "kernel.cubin").read_bytes()
    for size in (0, 10, 100, 1000, 3000):
        assert resources_of_cubin(cubin[:size], {"spilling": "spilling"}) == ()


def test_a_log_is_read_as_numbers() -> None:
    log = (
        "ptxas info    : Compiling entry function 'run' for 'sm_90a'\n"
        "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "1 bytes spill stores, 99999999999999 bytes spill loads\n"
    )
    assert spills_in_log(log) == {"run": (4, 12)}


def test_an_entry_has_resources() -> None:
    resource = KernelResources(kernel="tile<64, 8>", registers=40, shared_bytes=2048, local_bytes=0)
    passed_entry = entry(Verdict.PASSED, 1.5)
    assert b"resources" not in render_entry(passed_entry)
    rendered = render_entry(passed_entry.model_copy(update={"resources": (resource,)})).decode()
    assert 'resources:\n- {kernel: "tile<64, 8>", registers: 40, shared_bytes: 2048, local_bytes: 0}' in rendered
