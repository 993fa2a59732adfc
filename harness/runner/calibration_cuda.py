"""Language `known` of the judge: a call of one launch, with which the clock of a CUDA device is calibrated."""

from __future__ import annotations

from collections.abc import Callable

from .cuda_calls import Calls, SynchronousCalls
from .cuda_workload import CudaWorkload
from .messages import Load


def load(message: Load) -> Callable[[CudaWorkload], Calls]:
    """Return a function that prepares a workload, whose calls set the first output to zero."""
    del message

    def prepare(workload: CudaWorkload) -> Calls:
        outputs = [workload.output_tensors(placement)[0] for placement in range(workload.slots)]

        def call(placement: int) -> None:
            outputs[placement].zero_()

        return SynchronousCalls(call)

    return prepare
