"""Language cuda: device code and a plan. The trusted launcher makes every call; no host code of the author runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from cuda.bindings import driver as cuda

from . import driver
from .cubin import module_variables
from .cuda_calls import load_trusted
from .cuda_workload import CudaWorkload
from .launcher import SealedWorkload, VariableSnapshot
from .messages import Load

_REPEATS = 11
"""Number of calls of each kind, of which the median is reported."""


class SealedCalls:
    """Calls of one workload of a sealed solution."""

    def __init__(self, work: SealedWorkload) -> None:
        self._work = work

    def run(self, placement: int) -> int:
        """Make a call and return the nanoseconds between its events, from which nothing is subtracted."""
        return int(self._work.run(placement) * 1e3)

    def cold_and_warm(self, placement: int) -> tuple[int, int]:
        """Return the medians of calls with L2 displaced before each and of consecutive calls.

        Both are nanoseconds between events, from which nothing is subtracted.
        """
        cold = statistics.median(self._work.run(placement) for _ in range(_REPEATS))
        self._work.run(placement, cold=False)
        warm = statistics.median(self._work.run(placement, cold=False) for _ in range(_REPEATS))
        return round(cold * 1e3), round(warm * 1e3)


def load(message: Load) -> Callable[[CudaWorkload], SealedCalls]:
    """Load the cubins and return a function that prepares a workload."""
    trusted = load_trusted(str(message.trusted))
    functions: dict[str, cuda.CUfunction] = {}
    variables: list[VariableSnapshot] = []
    for directory in map(Path, message.program.artefacts):
        cubin = (directory / "kernel.cubin").read_bytes()
        module = driver.load(cubin)
        if module_scope := module_variables(cubin):
            variables.append(VariableSnapshot(module, module_scope, trusted.batched_copy))
        symbols: dict[str, str] = json.loads((directory / "names.json").read_text())["symbols"]
        functions |= {name: driver.kernel(module, symbol) for name, symbol in symbols.items()}

    def prepare(workload: CudaWorkload) -> SealedCalls:
        base = workload.memory.address

        def addresses(placement: int) -> dict[str, int]:
            inputs = base + placement * workload.stride
            outputs = inputs + workload.input_stride
            of_inputs = {f"input:{field.name}": inputs + field.offset for field in workload.inputs}
            return of_inputs | {f"output:{field.name}": outputs + field.offset for field in workload.outputs}

        placements = [addresses(placement) for placement in range(workload.slots)]
        work = SealedWorkload(trusted, functions, workload.plan, placements, variables)
        torch.cuda.synchronize()
        return SealedCalls(work)

    return prepare
