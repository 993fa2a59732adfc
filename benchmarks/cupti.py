"""Compare sealed readings with CUPTI's durations of the same launches.

    python -m benchmarks.cupti [--calls N]

The trusted launcher calls each shipped solution that consists of one launch, on its smallest and its largest workload.
Torch's profiler, which reads CUPTI, traces a second run. The sealed reading is the median, from which the overhead of
the event pair is subtracted as in the judge.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from tabulate import tabulate
from torch.autograd import DeviceType  # type: ignore[attr-defined] # documented, and not exported by its stub

from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.judge.build.cuda_builder import build_cuda, trusted_cubin
from harness.judge.devices.cuda_memory import CudaMemory, DeviceBatchedCopy
from harness.judge.devices.event_overhead import event_overhead_us
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
_ON_DEVICE = DeviceType.CUDA
Row = tuple[str, str, str]


def agreement(calls: int = 32) -> Iterator[Row]:
    """Yield the workload, the largest allowed difference, and both readings, for each solution.

    Args:
        calls: number of calls of each workload.
    """
    torch.zeros(1, device="cuda")
    with tempfile.TemporaryDirectory() as scratch:
        trusted = TrustedKernels(trusted_cubin(Path(scratch)))
        overhead_us = event_overhead_us(trusted, trusted.short_kernels_us())
        self_timed_us = trusted.pair_overhead_us()
        sys.stdout.write(f"overhead of events: {overhead_us:.2f} us, by a self-timed kernel {self_timed_us:.2f} us\n")
        for file in sorted(PROBLEMS.glob("*/*/solutions/h200/solution.yaml")):
            solution = load_solution(file.parent)
            if solution.spec.language != "cuda" or len(solution.spec.launch) != 1:
                continue
            problem = load_problem(file.parents[2])
            built = build_cuda(problem, solution, cache_dir=Path(scratch), sandbox="bubblewrap")
            for workload in _ends(problem):
                sealed, traced = _sealed_and_traced_us(
                    trusted, problem, workload, built.plans[workload.uuid], built.directory, calls
                )
                sealed -= overhead_us
                allowed = max(0.03 * traced, 0.3)
                text = f"{sealed:.2f} us, CUPTI {traced:.2f} us: {sealed - traced:+.2f}"
                yield (f"{'/'.join(file.parts[-5:-3])} {_axes(workload)}", f"{allowed:.2f} us", text)


def _ends(problem: Problem) -> list[Workload]:
    ordered = sorted(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
    return [ordered[0], ordered[-1]]


def _axes(workload: Workload) -> str:
    return " ".join(f"{name}={value}" for name, value in workload.axes.items())


def _sealed_and_traced_us(
    trusted: TrustedKernels, problem: Problem, workload: Workload, plan: ResolvedPlan, built: Path, calls: int
) -> tuple[float, float]:
    """Return the microseconds of a call: between events, and by CUPTI."""
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

    def addresses(slot: int) -> dict[str, int]:
        inputs = arena.data_ptr() + slot * stride
        outputs = inputs + layout.input_stride
        of_inputs = {f"input:{field.name}": inputs + field.offset for field in layout.inputs}
        return of_inputs | {f"output:{field.name}": outputs + field.offset for field in layout.outputs}

    work = SealedWorkload(trusted, functions, plan.as_json(), [addresses(slot) for slot in range(calls)])
    sealed_us(work, calls)
    sealed = statistics.median(sealed_us(work, calls))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        sealed_us(work, calls)
    events = [(event.name, event.device_time) for event in profile.events() if event.device_type == _ON_DEVICE]
    durations = [duration for name, duration in events if not name.startswith(("Mem", *TRUSTED_KERNELS))]
    assert len(durations) == calls, (
        f"{len(durations)} launches of {calls} calls: {sorted({name for name, _ in events})}"
    )
    return sealed, statistics.median(durations)


def sealed_us(work: SealedWorkload, calls: int) -> list[float]:
    """Return the microseconds of one call at each placement, from which nothing is subtracted."""
    return [work.run(placement) for placement in range(calls)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=32)
    options = parser.parse_args()
    print(tabulate(list(agreement(options.calls)), headers=("solution, workload", "allowed", "sealed and CUPTI")))


if __name__ == "__main__":
    main()
