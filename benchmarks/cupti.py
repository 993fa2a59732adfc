"""Do sealed readings agree with CUPTI's durations of the very same launches?

    python -m benchmarks.cupti [--calls N]

The trusted launcher calls each shipped solution that is one launch, on its smallest and its largest workload; torch's
profiler, which reads CUPTI, watches a second run. Sealed: the median reading less what the judge subtracts
for the event pair.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from tabulate import tabulate

from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.judge.build.cuda_builder import build_cuda, trusted_cubin
from harness.judge.devices.cuda_memory import CudaMemory, DeviceBatchedCopy
from harness.judge.devices.cuda_sealed import MAX_EVENT_OVERHEAD_NS
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.shared_memory import Region
from harness.model.launches import ResolvedPlan
from harness.model.problem import Problem, Workload
from harness.runner import driver
from harness.runner.launcher import SealedWorkload, TrustedKernels
from harness.runner.wire import TRUSTED_KERNELS

PROBLEMS = Path(__file__).parents[1] / "problems"
_SCALARS = 1 << 20
_MOST_BYTES = 2 << 30
_ON_DEVICE = torch.autograd.DeviceType.CUDA
Row = tuple[str, str, str]


def agreement(calls: int = 32) -> Iterator[Row]:
    """(what, what is allowed, what was seen) of each solution and workload."""
    torch.zeros(1, device="cuda")
    with tempfile.TemporaryDirectory() as scratch:
        trusted = TrustedKernels(trusted_cubin(Path(scratch)))
        for file in sorted(PROBLEMS.glob("*/*/solutions/h200/solution.yaml")):
            solution = load_solution(file.parent)
            if solution.spec.language != "cuda" or len(solution.spec.launch) != 1:
                continue
            problem = load_problem(file.parents[2])
            built = build_cuda(problem, solution, cache_dir=Path(scratch), sandbox="bubblewrap")
            for workload in _ends(problem):
                sealed, traced = _sealed_and_cupti_us(trusted, problem, workload, built.plans[workload.uuid], built.directory, calls)
                allowed = max(0.03 * traced, 0.3)
                measured = f"{sealed:.2f} us, CUPTI {traced:.2f} us: {sealed - traced:+.2f}"
                yield (f"{'/'.join(file.parts[-5:-3])} {_axes(workload)}", f"{allowed:.2f} us", measured)


def _ends(problem: Problem) -> list[Workload]:
    ordered = sorted(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
    return [ordered[0], ordered[-1]]


def _axes(workload: Workload) -> str:
    return " ".join(f"{name}={value}" for name, value in workload.axes.items())


def _sealed_and_cupti_us(
    trusted: TrustedKernels, problem: Problem, workload: Workload, plan: ResolvedPlan, built: Path, calls: int
) -> tuple[float, float]:
    """Microseconds a call: sealed, and by CUPTI."""
    layout = layout_of(problem, workload)
    stride = layout.input_stride + layout.output_stride
    calls = max(2, min(calls, _MOST_BYTES // stride))
    memory = CudaMemory(layout, calls, Region(_SCALARS, sealed=False))
    source = InputSource(problem, device=torch.device("cuda"), copy_all=DeviceBatchedCopy(trusted))
    source.refill_all(workload, [memory.views(slot) for slot in range(calls)])
    arena = torch.zeros(calls * stride, dtype=torch.uint8, device="cuda")
    for slot in range(calls):
        target = slot * stride
        arena[target : target + layout.input_stride] = memory.input_bytes[slot]
    module = driver.load((built / "kernel.cubin").read_bytes())
    symbols: dict[str, str] = json.loads((built / "names.json").read_text())["symbols"]
    functions = {name: driver.kernel(module, symbol) for name, symbol in symbols.items()}
    slots = SimpleNamespace(inputs=layout.inputs, outputs=layout.outputs, slots=calls)

    def place(slot: int) -> tuple[int, int]:
        begin = arena.data_ptr() + slot * stride
        return begin, begin + layout.input_stride

    work = SealedWorkload(trusted, functions, plan.as_json(), slots, place)
    sealed_us(work, calls)
    subtracted = min(MAX_EVENT_OVERHEAD_NS / 1e3, trusted.pair_overhead_us())
    sealed = statistics.median(sealed_us(work, calls)) - subtracted
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        sealed_us(work, calls)
    events = [(event.name, event.device_time) for event in profile.events() if event.device_type == _ON_DEVICE]
    durations = [took for name, took in events if not name.startswith(("Mem", *TRUSTED_KERNELS))]
    assert len(durations) == calls, f"{len(durations)} launches of {calls} calls: {sorted({name for name, _ in events})}"
    return sealed, statistics.median(durations)


def sealed_us(work: SealedWorkload, calls: int) -> list[float]:
    """Durations of one call at each placement."""
    return [work.run(placement) for placement in range(calls)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=32)
    options = parser.parse_args()
    print(tabulate(list(agreement(options.calls)), headers=("solution, workload", "allowed", "seen")))


if __name__ == "__main__":
    main()
