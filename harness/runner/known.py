"""The call with which a CUDA device's clock is calibrated: one launch and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cuda_arena import CudaWorkload
from .cuda_calls import Bounded, Calls


def load(message: dict[str, Any]) -> Callable[[CudaWorkload], Calls]:
    """Return what prepares a workload: a call sets its first output to zero."""
    del message

    def prepare(workload: CudaWorkload) -> Calls:
        outputs = [workload.output_tensors(placement)[0] for placement in range(workload.slots)]

        def call(placement: int) -> None:
            outputs[placement].zero_()

        return Bounded(call)

    return prepare
