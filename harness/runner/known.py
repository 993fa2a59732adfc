"""Calls for calibration on a CUDA device: one of known length, or one that is nothing but its launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .cuda_arena import CudaWorkload
from .cuda_calls import Bounded, Calls

_CYCLES = 400_000
"""About a fifth of a millisecond: long enough for the host to be ahead of the device."""


class Known:
    """A kernel that spins, then a copy of the input; what the device's events read is what is claimed."""

    def __init__(self, workload: CudaWorkload) -> None:
        self._tensors = [
            (workload.input_tensors(slot)[0], workload.output_tensors(slot)[0]) for slot in range(workload.slots)
        ]

    def run(self, identity: int, slots: Sequence[int]) -> int:
        """See `Calls`."""
        del identity
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for slot in slots:
            torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch's benchmarks use it
            source, target = self._tensors[slot]
            target.copy_(source)
        stop.record()
        torch.cuda.synchronize()
        return int(start.elapsed_time(stop) * 1e6)


def load(message: dict[str, Any]) -> Callable[[CudaWorkload], Calls]:
    """For one input the known call, for several a launch and nothing else."""
    del message

    def prepare(workload: CudaWorkload) -> Calls:
        if len(workload.inputs) == 1:
            return Known(workload)
        outputs = [workload.output_tensors(slot)[0] for slot in range(workload.slots)]

        def call(slot: int) -> None:
            outputs[slot].zero_()

        return Bounded(call)

    return prepare
