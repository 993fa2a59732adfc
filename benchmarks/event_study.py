"""Compare CUDA events around one kernel with a cold L2 with CUPTI's duration of the same launch.

Run on a CUDA machine: `python -m benchmarks.event_study`. The sealed clock measures in this way: the launcher writes
call i's inputs, evicts the L2 cache, then brackets the kernel with events, in stream order with a full queue. The pair
reads more than the kernel's duration. The table shows the difference by kernel length, launch size and bracket:

  pair     event, kernel, event
  null     event, null kernel of the same grid, event (what a launch costs inside a pair)
  empty    event, event

The reference is CUPTI's start and end of the same launches, from torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from tabulate import tabulate

SOURCE = r"""
extern "C" __global__ void work(const float* in, float* out, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = in[i], y = x;
    for (int r = 0; r < rounds; ++r) y = fmaf(y, 0.999f, x * 1e-3f);
    out[i] = y;
}
extern "C" __global__ void null_kernel(const float* in, float* out, int n, int rounds) {}
extern "C" __global__ void fill(float* out, int n, unsigned seed) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = (float)((i * 2654435761u) ^ seed) * 2.3283e-10f;
}
extern "C" __global__ void hold(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""
L2_EVICTION_BYTES = 256 << 20
"""Several times the 60 MB L2 of a Hopper."""


def measure(elements: int, rounds: int, repeats: int, kernels: dict[str, Any]) -> dict[str, float]:
    """Return medians in microseconds: the pair's reading and CUPTI's duration of the kernel inside it.

    Args:
        elements: elements of a call.
        rounds: rounds of the kernel's loop.
        repeats: calls of each bracket.
        kernels: compiled kernels of `SOURCE` by name.
    """
    import cupy
    import torch

    source, out = cupy.zeros(elements, "f4"), cupy.zeros(elements, "f4")
    evict = cupy.zeros(L2_EVICTION_BYTES // 4, "f4")
    grid, block = ((elements + 255) // 256,), (256,)
    brackets = ("work", "null_kernel", "")
    events = {name: [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(repeats)] for name in brackets}

    def queue() -> None:
        kernels["hold"]((1,), (1,), (20_000_000,))
        for call in range(repeats):
            for name in brackets:
                kernels["fill"]((264,), (256,), (source, elements, call))
                kernels["fill"]((264,), (256,), (evict, evict.size, call))
                start, stop = events[name][call]
                start.record()
                if name:
                    kernels[name](grid, block, (source, out, elements, rounds))
                stop.record()
        cupy.cuda.runtime.deviceSynchronize()

    queue()
    queue()
    reading = {
        name: statistics.median(cupy.cuda.get_elapsed_time(a, b) * 1e3 for a, b in events[name]) for name in brackets
    }
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        queue()
    durations: dict[str, list[float]] = {"work": [], "null_kernel": []}
    for event in profile.events():
        if event.name in durations:
            durations[event.name].append(event.device_time)
    traced = {name: statistics.median(values) for name, values in durations.items()}
    pair, null, empty = reading["work"], reading["null_kernel"], reading[""]
    return {
        "blocks": grid[0],
        "cupti_us": traced["work"],
        "pair_us": pair,
        "null_us": null,
        "null_cupti_us": traced["null_kernel"],
        "empty_us": empty,
        "pair-cupti": pair - traced["work"],
        "pair-empty-cupti": pair - empty - traced["work"],
        "pair-(null-nullcupti)-cupti": pair - (null - traced["null_kernel"]) - traced["work"],
    }


def main() -> None:
    """Print the table, and write it as JSON if `--json` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import cupy

    module = cupy.RawModule(code=SOURCE)
    kernels = {name: module.get_function(name) for name in ("work", "null_kernel", "fill", "hold")}
    rows = [
        {"elements": elements, "rounds": rounds, **measure(elements, rounds, options.repeats, kernels)}
        for elements in (256, 65_536, 1 << 20, 1 << 24)
        for rounds in (0, 200, 2_000, 20_000, 200_000)
        if elements * rounds <= 1 << 37
    ]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print(tabulate(rows, headers="keys", floatfmt=".2f"))


if __name__ == "__main__":
    main()
