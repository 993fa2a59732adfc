"""A CUDA device in a runner: mapped memory of a workload, and one call at a time at the judge's request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import torch

from . import calibration_cuda, sealed  # noqa: F401 - imported before the first solution
from .cuda_calls import Calls, EventTimedCalls, SynchronousCalls, load_trusted
from .cuda_workload import CudaWorkload, PlacementMemory
from .doorbell import Doorbell
from .launcher import TrustedKernels
from .messages import DeviceMemory, Load, Prepare, RecordCall


class CudaLine:
    """A loaded solution on the device."""

    def __init__(self, message: Load, descriptors: Sequence[int]) -> None:
        scalars, page = descriptors
        assert isinstance(message.memory, DeviceMemory)  # noqa: S101 - the judge's message for a GPU
        self._memory = PlacementMemory(scalars, message.memory)
        self._doorbell = Doorbell(page)
        os.close(page)
        self._pinged = torch.zeros(1, device="cuda")
        self._trusted: TrustedKernels | None = None
        self.short_kernel_ns = 0
        """Nanoseconds between events around a short trusted kernel before the solution is loaded; 0 without events."""
        if message.trusted is not None:
            self._trusted = load_trusted(message.trusted)
            self.short_kernel_ns = round(self._trusted.short_kernel_us() * 1e3)
        self._calls: Calls | None = None
        self._workload: CudaWorkload | None = None

    def prepare(self, solution: Any, message: Prepare, descriptors: Sequence[int]) -> None:  # noqa: ANN401 - what a loader gave
        """Map the placements of a workload and prepare its calls.

        Args:
            solution: function that a loader returned.
            message: the judge's request.
            descriptors: physical memory of each placement.
        """
        self._calls = None
        torch.cuda.empty_cache()  # blocks of the last workload do not fit this one, and the other side needs memory
        self._memory.map(descriptors, message.placement_bytes)
        self._workload = self._memory.workload(message)
        calls = solution(self._workload)
        if hasattr(calls, "run"):
            self._calls = calls
        elif self._trusted is not None:
            self._calls = EventTimedCalls(self._trusted, calls)
        else:
            self._calls = SynchronousCalls(calls)

    def serve(self) -> None:
        """Make the calls of one batch at the judge's requests."""
        assert self._calls is not None  # noqa: S101 - the judge prepares first
        self._doorbell.serve(self._calls.run, self._ping)

    def release_memory(self) -> None:
        """Give torch's cached blocks back to the device."""
        torch.cuda.empty_cache()

    def record(self, solution: Any, message: RecordCall, descriptors: Sequence[int]) -> None:  # noqa: ANN401 - what a loader gave
        """Make a call on the inputs of a placement, and write its launches into the judge's file.

        Args:
            solution: function that a loader returned.
            message: the judge's request, with the number of the placement.
            descriptors: the judge's file.
        """
        assert self._workload is not None  # noqa: S101 - the judge prepares first
        from .recording import record_call  # noqa: PLC0415 - only for Triton solutions

        (descriptor,) = descriptors
        call, passing = solution.split_call(self._workload), solution.destination_passing
        record_call(descriptor, call, self._workload, message.placement, passing=passing)

    def cold_and_warm(self, placement: int) -> tuple[int, int]:
        """See `SealedCalls`; the inputs are those at the placement."""
        assert isinstance(self._calls, sealed.SealedCalls)  # noqa: S101 - the judge asks for sealed calls only
        return self._calls.cold_and_warm(placement)

    def _ping(self) -> None:
        self._pinged.zero_()
        torch.cuda.synchronize()


def prepare_without_device() -> None:
    """Load the parts of `warm` that do not use the device: Triton, its compiler and its utilities.

    A failure is ignored, because `warm` fails for the same reason and reports it.
    """
    with contextlib.suppress(Exception):
        from .warm_triton import compile_without_device  # noqa: PLC0415 - Triton may be missing

        compile_without_device(int(os.environ["HARNESS_RUNNER_CAPABILITY"]))


def warm() -> None:
    """Load what a first call needs: the CUDA context, cuBLAS, Triton's compiler and its launcher.

    It uses the device. The judge therefore sends it as a separate request while nothing is timed.
    """
    matrix = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    torch.mm(matrix, matrix).float().sum()
    with contextlib.suppress(ImportError):
        from .warm_triton import compile_and_launch  # noqa: PLC0415 - Triton may be missing

        compile_and_launch(matrix)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
