"""Compare bounded latencies of a kernel that is launched from C++ with the time from its launch to its end.

    python -m benchmarks.bounded_agreement [--rows ROWS]...

The judge runs in this process, without a sandbox for the candidate. The candidate is a CUDA C++ extension that launches
one kernel. It reads the host's clock when it is called and before the launch. The last block of the kernel writes the
device's clock (`globaltimer`) to pinned host memory. In every tenth call the extension also compares both clocks, with
a kernel that writes the device's clock while the host polls: the smallest difference of thirty is used, and between two
such calls it is interpolated. These calls are not compared. No tool traces the calls, because tracing changes them.

The end of a kernel is dated when the host can see it, at most 1 us late.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml
from tabulate import tabulate

from benchmarks.gpu import problem
from benchmarks.requests import evaluation_request
from harness.judge.devices.cuda_cycle import CudaConnection, Cycle
from harness.judge.devices.interface import Reading
from harness.judge.devices.opening import open_device
from harness.judge.judge import Judge
from harness.runner.doorbell import Request

ROWS = (8_192, 16_384, 32_768, 65_536)
KERNEL = r"""
__device__ unsigned finished_blocks;

__device__ unsigned long long device_time_ns() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__global__ void write_time(volatile unsigned long long* to) { *to = device_time_ns(); }

__global__ void rms(const unsigned short* x, const unsigned short* w, unsigned short* y,
                    volatile unsigned long long* end) {
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
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(&finished_blocks, 1) == gridDim.x - 1) {
            finished_blocks = 0;
            *end = device_time_ns();
        }
    }
}
"""
_CALLS, _SKIPPED, _CLOCKS_EVERY = 60, 20, 10
"""Calls with times; how many of them are not compared, because in the first batches the runner's cores change; and one
call in how many compares the clocks."""
EXTENSION = (
    KERNEL
    + r"""
#include <cstdio>
#include <ctime>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

struct Call { long long called, launched, clock_difference; };
static Call calls[CALLS];
static int count;
static volatile unsigned long long* times;

static long long host_time_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC_RAW, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static long long clock_difference_ns(cudaStream_t stream) {
    long long least = 1ll << 62;
    for (int i = 0; i < 30; ++i) {
        times[CALLS] = 0;
        write_time<<<1, 1, 0, stream>>>(times + CALLS);
        while (!times[CALLS]) {}
        const long long difference = host_time_ns() - (long long)times[CALLS];
        least = difference < least ? difference : least;
    }
    return least;
}

static void write_calls() {
    if (FILE* file = fopen(TRACE, "wx")) {
        for (int i = 0; i < CALLS; ++i)
            fprintf(file, "%lld %lld %llu %lld\n", calls[i].called, calls[i].launched, times[i],
                    calls[i].clock_difference);
        fclose(file);
    }
}

void launch(tvm::ffi::TensorView x, tvm::ffi::TensorView w, tvm::ffi::TensorView y) {
    const long long called = host_time_ns();
    const auto words = [](tvm::ffi::TensorView& tensor) { return static_cast<unsigned short*>(tensor.data_ptr()); };
    const DLDevice device = x.device();
    const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
    if (!times) cudaHostAlloc((void**)&times, (CALLS + 1) * sizeof(*times), cudaHostAllocMapped);
    if (count == CALLS) write_calls();
    const int call = count < CALLS ? count : CALLS;
    ++count;
    const bool compares_clocks = call < CALLS && call % CLOCKS_EVERY == 0;
    const long long difference = compares_clocks ? clock_difference_ns(stream) : 0;
    const long long launched = host_time_ns();
    rms<<<x.size(0), 256, 0, stream>>>(words(x), words(w), words(y), times + call);
    if (call < CALLS) calls[call] = {called, launched, difference};
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, launch)
"""
)


@dataclass(frozen=True)
class JudgedCall:
    """A call as the judge timed it: the time of its request, and its reading."""

    begin_ns: int
    reading: Reading


@dataclass(frozen=True)
class TimedCall:
    """Times of a call in the candidate, in nanoseconds of CLOCK_MONOTONIC_RAW."""

    called_ns: int
    launched_ns: int
    ended_ns: float
    compares_clocks: bool


class CandidateCalls:
    """The judge's readings of the candidate's calls, in their order."""

    def __init__(self) -> None:
        self.calls: list[JudgedCall] = []
        self._bounded, self._request = Cycle.bounded, CudaConnection.request
        self._begin_ns = 0

    def request(self) -> Callable[..., int]:
        """Return a replacement of `CudaConnection.request` that stores the time of a call's request."""

        def request(line: CudaConnection, kind: Request, *arguments: Any, **options: Any) -> int:  # noqa: ANN401 - passed on
            begin_ns = self._request(line, kind, *arguments, **options)
            if kind == Request.CALL:
                self._begin_ns = begin_ns
            return begin_ns

        return request

    def bounded(self) -> Callable[..., Reading]:
        """Return a replacement of `Cycle.bounded` that stores the reading if the runner is the candidate's."""

        def bounded(cycle: Cycle, line: CudaConnection, *arguments: Any, **options: Any) -> Reading:  # noqa: ANN401 - passed on
            reading = self._bounded(cycle, line, *arguments, **options)
            if line.trust.runs_untrusted_host_code:
                self.calls.append(JudgedCall(self._begin_ns, reading))
            return reading

        return bounded


def agreement(judge: Judge, root: Path, sizes: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield the size, the largest allowed difference and the figures of each size, or why it has none.

    Args:
        judge: a judge on a GPU, with sandbox "none".
        root: directory for problems and solutions.
        sizes: numbers of rows.
    """
    for rows in sizes:
        directory, trace = problem(root, (rows,)), root / f"trace{rows}"
        solution = _timed_solution(root, trace, rows)
        judged = CandidateCalls()
        with (
            mock.patch.object(CudaConnection, "request", judged.request()),
            mock.patch.object(Cycle, "bounded", judged.bounded()),
        ):
            answer = judge.answer(evaluation_request(directory, solution), lambda _: None)
        if not trace.is_file():
            yield f"{rows} rows", "", f"{answer.verdict}: {answer.reason or 'too few calls'}"
            continue
        pairs = [
            (call, times)
            for call, times in list(zip(judged.calls, timed_calls(trace.read_text()), strict=False))[_SKIPPED:]
            if not call.reading.was_held and not times.compares_clocks
        ]
        figures = figures_us(pairs, judge.device.clock.calibration.call_overhead_ns)
        yield (
            f"{rows} rows, {answer.trust}, {len(pairs)} calls",
            f"{max(0.03 * figures[1], 3.0):.1f}",
            *(f"{figure:.1f}" for figure in figures),
        )


def figures_us(pairs: Sequence[tuple[JudgedCall, TimedCall]], overhead_ns: float) -> list[float]:
    """Return medians over calls, in microseconds, in the order of the table's columns from `latency` on.

    Args:
        pairs: each call as the judge and as the candidate timed it.
        overhead_ns: what the judge subtracts from a reading.
    """
    values = [
        (
            call.reading.ns - overhead_ns,
            times.ended_ns - times.launched_ns,
            call.reading.ns - overhead_ns - (times.ended_ns - times.launched_ns),
            times.called_ns - call.begin_ns,
            times.launched_ns - times.called_ns,
            call.begin_ns + call.reading.ns - times.ended_ns,
            call.reading.ns - call.reading.claimed_ns,
            overhead_ns,
        )
        for call, times in pairs
    ]
    return [statistics.median(column) / 1e3 for column in zip(*values, strict=True)]


def timed_calls(text: str) -> list[TimedCall]:
    """Return the calls that the extension wrote, with the ends of kernels on the host's clock.

    Args:
        text: a line for each call: times of the call and of the launch on the host's clock, end of the kernel on the
            device's, and the difference of the clocks, or 0 where they were not compared; nanoseconds.
    """
    rows = [[int(word) for word in line.split()] for line in text.splitlines()]
    compared = [row for row in rows if row[3]]
    origin = compared[0][3]
    times, differences = [row[1] for row in compared], [row[3] - origin for row in compared]
    return [
        TimedCall(called, launched, ended + origin + float(np.interp(launched, times, differences)), bool(difference))
        for called, launched, ended, difference in rows
    ]


def _timed_solution(root: Path, trace: Path, rows: int) -> Path:
    """Return the directory of a CUDA C++ solution that writes the times of its calls."""
    solution = root / f"solution{rows}"
    solution.mkdir()
    constants = {"CALLS": _CALLS, "CLOCKS_EVERY": _CLOCKS_EVERY, "TRACE": f'"{trace}"'}
    definitions = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    (solution / "main.cu").write_text(definitions + EXTENSION)
    spec = {"entry": "main.cu::run", "language": "cuda_cpp", "binding": "tvm_ffi"}
    (solution / "solution.yaml").write_text(yaml.safe_dump(spec))
    return solution


def main() -> None:
    """Print a table in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="rows of 4096 bfloat16 elements; may be given often")
    sizes = parser.parse_args().rows or ROWS
    headers = (
        "case", "at most", "latency", "launch to end", "difference", "request to call", "call to launch",
        "end to reading", "reading less runner's", "subtracted",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as directory:
        root = Path(directory)
        os.environ.setdefault("HARNESS_LOCK_DIR", str(root / "locks"))
        device = open_device("cuda", cache=root / "cache", sandbox="none")
        judge = Judge(device, cache_dir=root / "cache", sandbox="none")
        try:
            for row in agreement(judge, root, sizes):
                sys.stdout.write(tabulate([row], headers=headers[: len(row)]) + "\n")
                sys.stdout.flush()
        finally:
            judge.close()


if __name__ == "__main__":
    main()
