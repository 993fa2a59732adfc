"""The runner's side of a CUDA device: memory mapped for a workload, calls made one at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import torch

from . import known, sealed  # noqa: F401 - imported before there is anything to run
from .cuda_arena import CudaArena, CudaWorkload
from .cuda_calls import Bounded, Calls, Timed, load_trusted
from .doorbell import Doorbell
from .launcher import Trusted


class CudaLine:
    """One loaded solution on the device."""

    def __init__(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        scalars, page = descriptors
        self._arena = CudaArena((scalars,), message)
        self._doorbell = Doorbell(page)
        os.close(page)
        self._pinged = torch.zeros(1, device="cuda")
        self._trusted: Trusted | None = None
        self.short_kernel_ns = 0
        """Reading of events around a short trusted kernel before the solution is loaded; 0 by another clock."""
        if message.get("timed"):
            self._trusted = load_trusted(message["trusted"])
            self.short_kernel_ns = round(self._trusted.short_kernel_us() * 1e3)
        self._calls: Calls | None = None
        self._workload: CudaWorkload | None = None

    def prepare(self, solution: Any, message: dict[str, Any], descriptors: Sequence[int]) -> None:  # noqa: ANN401 - what a loader gave
        """Map a workload's placements and get its calls ready."""
        self._calls = None
        self._arena.map(descriptors, message["placement_bytes"])
        self._workload = self._arena.workload(message)
        made = solution(self._workload)
        if hasattr(made, "run"):
            self._calls = made
        elif self._trusted is not None:
            self._calls = Timed(self._trusted, made)
        else:
            self._calls = Bounded(made)

    def serve(self) -> None:
        """Make the calls of one batch, as the judge asks for them."""
        assert self._calls is not None  # noqa: S101 - the judge prepares first
        self._doorbell.serve(self._calls.run, self._ping)

    def record(self, solution: Any, message: dict[str, Any], descriptors: Sequence[int]) -> None:  # noqa: ANN401 - what a loader gave
        """Make a call on the inputs that are there, and write what it launches into the judge's file."""
        assert self._workload is not None  # noqa: S101 - the judge prepares first
        from .recording import record_call  # noqa: PLC0415 - only Triton solutions are recorded

        (descriptor,) = descriptors
        record_call(
            descriptor,
            solution.halves(self._workload),
            self._workload,
            message["placement"],
            passing=solution.destination_passing,
        )

    def cold_and_warm(self, placement: int) -> tuple[int, int]:
        """See `SealedCalls`; on the inputs that are at the placement."""
        assert isinstance(self._calls, sealed.SealedCalls)  # noqa: S101 - the judge asks for sealed calls only
        return self._calls.cold_and_warm(placement)

    def _ping(self) -> None:
        self._pinged.zero_()
        torch.cuda.synchronize()


def warm() -> None:
    """Do what every first call would wait for: the context, cuBLAS, Triton's compiler and its link to the driver.

    A request of its own, because it uses the device: the judge sends it when nothing is timed.
    """
    some = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    torch.mm(some, some).float().sum()
    with contextlib.suppress(ImportError):
        from .warm_triton import touch  # noqa: PLC0415 - Triton need not be there

        touch(some)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
