"""The runner's side of a CUDA device: memory shown for a batch, calls made, memory let go of."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from . import known, sealed  # noqa: F401 - imported before there is anything to run
from .cuda_arena import CudaArena
from .cuda_calls import Bounded, Calls, Timed, load_trusted
from .launcher import Trusted


class CudaLine:
    """One loaded solution on the device."""

    def __init__(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        self._arena = CudaArena(descriptors, message)
        self._trusted: Trusted | None = None
        if message.get("timed") and message["language"] != "cuda":
            self._trusted = load_trusted(message["trusted"])
        self._calls: Calls | None = None
        self._stride = 0

    def prepare(self, solution: Any, message: dict[str, Any]) -> None:  # noqa: ANN401 - what a loader gave
        """Get a workload's calls ready."""
        self._calls = None
        workload = self._arena.workload(message)
        self._stride = workload.stride
        made = solution(workload)
        if hasattr(made, "run"):
            self._calls = made
        elif self._trusted is not None:
            self._calls = Timed(self._trusted, made)
        else:
            self._calls = Bounded(made)

    def run(self, identity: int, slots: Sequence[int], descriptor: int) -> int:
        """One batch in the memory of a descriptor; nanoseconds claimed."""
        assert self._calls is not None  # noqa: S101 - the judge prepares first
        self._arena.show(descriptor, (max(slots) + 1) * self._stride)
        return self._calls.run(identity, slots)

    def let_go(self) -> None:
        """Of the batch's memory."""
        self._arena.hide()


def warm() -> None:
    """Do what every first call would wait for: the context, cuBLAS, Triton's compiler and its link to the driver."""
    some = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    torch.mm(some, some).float().sum()
    with contextlib.suppress(ImportError):
        from .warm_triton import touch  # noqa: PLC0415 - Triton need not be there

        touch(some)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
