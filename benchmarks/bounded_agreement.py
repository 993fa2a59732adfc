"""Compare bounded latencies of a kernel that is launched from C++ with the time from its launch call to its end.

    python -m benchmarks.bounded_agreement

The judge times a CUDA C++ extension that launches one kernel, in a sandboxed process. This process launches the same
kernel on inputs of the same size, with other data in L2, and torch's profiler, which reads CUPTI, reports the start of
the launch call and the end of the kernel. Sizes give 50 us and more.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cupy
import torch
import yaml
from tabulate import tabulate
from torch.autograd import DeviceType  # type: ignore[attr-defined] # documented, and not exported by its stub

from benchmarks.gpu import evaluate, problem
from harness.workspace.blocking_judge import JudgeProcess, judge_process

ROWS = (8_192, 16_384, 32_768, 65_536)
KERNEL = """
extern "C" __global__ void rms(const unsigned short* x, const unsigned short* w, unsigned short* y) {
    const size_t row = blockIdx.x * size_t(4096);
    float sum = 0;
    for (int i = threadIdx.x; i < 4096; i += 256) {
        const float value = __uint_as_float(unsigned(x[row + i]) << 16);
        sum += value * value;
    }
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    __shared__ float warps[8];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; ++i) sum += warps[i];
    const float scale = rsqrtf(sum / 4096 + 1e-5f);
    for (int i = threadIdx.x; i < 4096; i += 256) {
        const float value = __uint_as_float(unsigned(x[row + i]) << 16) * scale;
        const unsigned bits = __float_as_uint(value * __uint_as_float(unsigned(w[i]) << 16));
        y[row + i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // round to nearest, ties to even
    }
}
"""
EXTENSION = (
    KERNEL
    + """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

void launch(tvm::ffi::TensorView x, tvm::ffi::TensorView w, tvm::ffi::TensorView y) {
    const auto words = [](tvm::ffi::TensorView& tensor) { return static_cast<unsigned short*>(tensor.data_ptr()); };
    const DLDevice device = x.device();
    const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    rms<<<x.size(0), 256, 0, stream>>>(words(x), words(w), words(y));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, launch)
"""
)
_CALLS = 60
_DISPLACED_BYTES = 256 << 20
Row = tuple[str, str, str]


def agreement(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Yield size, largest allowed difference, and both latencies with their difference.

    Args:
        judge: a running judge on a GPU.
        root: directory for the problems and the solution.
    """
    solution = root / "extension"
    solution.mkdir()
    (solution / "main.cu").write_text(EXTENSION)
    spec = {"entry": "main.cu::run", "language": "cuda_cpp", "binding": "tvm_ffi"}
    (solution / "solution.yaml").write_text(yaml.safe_dump(spec))
    for rows in ROWS:
        variant = {f"rows{rows}": "eager"}
        answer, _ = evaluate(judge, problem(root, (rows,)), solution, baseline=variant, sealed_baseline=variant)
        latency_us = answer.workloads[0].latency_us
        if latency_us is None:
            yield f"{rows} rows", "", f"{answer.verdict}: {answer.reason}"
            continue
        traced_us = launch_to_end_us(rows)
        allowed_us = max(0.03 * traced_us, 3.0)
        text = f"{latency_us:.1f} us, launch call to end {traced_us:.1f} us: {latency_us - traced_us:+.1f}"
        yield f"{rows} rows, {answer.trust}", f"{allowed_us:.1f} us", text


def launch_to_end_us(rows: int) -> float:
    """Return the median time from the launch call of the kernel to its end, in microseconds, by CUPTI.

    Args:
        rows: number of rows of 4,096 columns.
    """
    kernel = cupy.RawKernel(KERNEL, "rms")
    inputs, outputs = (torch.zeros(rows * 4096, dtype=torch.int16, device="cuda") for _ in range(2))
    weight = torch.zeros(4096, dtype=torch.int16, device="cuda")
    displaced = torch.zeros(_DISPLACED_BYTES, dtype=torch.uint8, device="cuda")
    arguments = (inputs.data_ptr(), weight.data_ptr(), outputs.data_ptr())
    pointers = tuple(cupy.uint64(address) for address in arguments)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    kernel((rows,), (256,), pointers)
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(_CALLS):
            displaced.max()
            torch.cuda.synchronize()
            kernel((rows,), (256,), pointers)
            torch.cuda.synchronize()
    events = profile.events()
    ends = sorted(
        event.time_range.end for event in events if event.device_type == DeviceType.CUDA and event.name == "rms"
    )
    begins = sorted(event.time_range.start for event in events if event.name == "cuLaunchKernel")
    if not len(ends) == len(begins) == _CALLS:
        names = sorted({event.name for event in events})
        raise RuntimeError(f"{len(begins)} launch calls and {len(ends)} kernels of {_CALLS} calls: {names}")
    return statistics.median(float(end - begin) for begin, end in zip(begins, ends, strict=True))


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as directory:
        root = Path(directory)
        os.environ.setdefault("HARNESS_LOCK_DIR", str(root / "locks"))
        with judge_process("cuda", root / "cache", "bubblewrap") as judge:
            rows = list(agreement(judge, root))
    sys.stdout.write(tabulate(rows, headers=("workload", "allowed", "bounded latency and CUPTI")) + "\n")


if __name__ == "__main__":
    main()
