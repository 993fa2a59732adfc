"""Compare bounded latencies of a kernel that is launched from C++ with CUPTI, for the same calls.

    python -m benchmarks.bounded_agreement

The judge runs in this process, without a sandbox for the candidate. The candidate calls a CUDA C++ extension that
launches one kernel, and traces its own first calls with torch's profiler, which reads CUPTI. For each call that counts,
the judge's reading is compared with the time from the launch call to the end of the kernel. The trace makes launches a
few microseconds longer, in both.
"""

from __future__ import annotations

import bisect
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from benchmarks.gpu import problem
from benchmarks.requests import evaluation_request
from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.judge.build.cuda_builder import architecture
from harness.judge.build.extension_builder import build_extension
from harness.judge.devices.cuda_cycle import Cycle
from harness.judge.devices.interface import Reading
from harness.judge.devices.opening import open_device
from harness.judge.judge import Judge

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
_CALLS, _SKIPPED = 80, 30
"""Traced calls, and how many of them are not compared: in the first batches the runner's cores change."""
TRACED_SOLUTION = """
import json

import torch
import tvm_ffi
from torch.autograd import DeviceType

call = tvm_ffi.load_module({library!r}).get_function("run")
calls = 0
profile = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], acc_events=True
)


def run(hidden_states, weight, output):
    global calls
    if calls == 0:
        profile.__enter__()
    if calls == {calls}:
        profile.__exit__(None, None, None)
        events = [
            (event.name, event.device_type == DeviceType.CUDA, event.time_range.start, event.time_range.end)
            for event in profile.events()
        ]
        with open({trace!r}, "w") as file:
            json.dump(events, file)
    calls += 1
    call(hidden_states, weight, output)
"""
Row = tuple[str, str, str]


class CandidateReadings:
    """The judge's readings of the candidate's calls, in their order."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self._bounded = Cycle.bounded

    def method(self) -> Callable[..., Reading]:
        """Return a replacement of `Cycle.bounded` that stores the reading if the runner is the candidate's."""

        def bounded(cycle: Cycle, line: Any, *arguments: Any, **options: Any) -> Reading:  # noqa: ANN401 - passed on
            reading = self._bounded(cycle, line, *arguments, **options)
            if not line.is_trusted:
                self.readings.append(reading)
            return reading

        return bounded


def agreement(judge: Judge, root: Path) -> Iterator[Row]:
    """Yield size, largest allowed difference, and both latencies with their difference.

    Args:
        judge: a judge on a GPU, with sandbox "none".
        root: directory for problems and solutions.
    """
    for rows in ROWS:
        directory, trace = problem(root, (rows,)), root / f"trace{rows}.json"
        solution = _traced_solution(root, directory, trace, rows)
        recorded = CandidateReadings()
        with mock.patch.object(Cycle, "bounded", recorded.method()):
            answer = judge.answer(evaluation_request(directory, solution), lambda _: None)
        if not trace.is_file():
            yield f"{rows} rows", "", f"{answer.verdict}: {answer.reason or 'too few calls'}"
            continue
        overhead_us = judge.device.calibration.call_overhead_ns / 1e3
        pairs = [
            (reading.ns / 1e3 - overhead_us, traced_us)
            for reading, traced_us in list(zip(recorded.readings, _launch_to_end_us(trace), strict=False))[_SKIPPED:]
            if not reading.was_held
        ]
        traced = statistics.median(traced_us for _, traced_us in pairs)
        difference = statistics.median(reading_us - traced_us for reading_us, traced_us in pairs)
        text = (
            f"{traced + difference:.1f} us, launch call to end {traced:.1f} us: {difference:+.1f} ({len(pairs)} calls)"
        )
        yield f"{rows} rows, {answer.trust}", f"{max(0.03 * traced, 3.0):.1f} us", text


def _traced_solution(root: Path, problem_dir: Path, trace: Path, rows: int) -> Path:
    """Build the extension, and return the directory of a Python solution that calls it and writes the trace."""
    extension, solution = root / f"extension{rows}", root / f"solution{rows}"
    extension.mkdir()
    solution.mkdir()
    (extension / "main.cu").write_text(EXTENSION)
    spec = {"entry": "main.cu::run", "language": "cuda_cpp", "binding": "tvm_ffi"}
    (extension / "solution.yaml").write_text(yaml.safe_dump(spec))
    built = build_extension(
        load_problem(problem_dir),
        load_solution(extension),
        architecture=architecture,
        cache_dir=root / "cache",
        sandbox="none",
    )
    source = TRACED_SOLUTION.format(library=str(built.path), trace=str(trace), calls=_CALLS)
    (solution / "kernel.py").write_text(source)
    (solution / "solution.yaml").write_text(yaml.safe_dump({"entry": "kernel.py::run", "language": "pytorch"}))
    return solution


def _launch_to_end_us(trace: Path) -> list[float]:
    """Return the microseconds from the launch call of each traced kernel to its end, in order."""
    events: list[tuple[str, bool, float, float]] = json.loads(trace.read_text())
    launches = sorted(begin for name, on_device, begin, _ in events if not on_device and "LaunchKernel" in name)
    kernels = sorted((begin, end) for name, on_device, begin, end in events if on_device and name == "rms")
    return [end - launches[bisect.bisect_right(launches, begin) - 1] for begin, end in kernels]


def main() -> None:
    """Print the workload, the largest allowed difference and both latencies, one row after the other."""
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as directory:
        root = Path(directory)
        os.environ.setdefault("HARNESS_LOCK_DIR", str(root / "locks"))
        device = open_device("cuda", cache=root / "cache", sandbox="none")
        judge = Judge(device, cache_dir=root / "cache", sandbox="none")
        try:
            for row in agreement(judge, root):
                sys.stdout.write(" | ".join(row) + "\n")
                sys.stdout.flush()
        finally:
            judge.close()


if __name__ == "__main__":
    main()
