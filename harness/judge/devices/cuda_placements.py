"""Memory at several places of a CUDA device, for the inputs and outputs of a runner's calls.

Where buffers lie in physical memory changes the time of a short kernel by up to 3.4 % (standard deviation; see
docs/clock.md). So each side has its own placements, each call uses one at random, and the interval has a term for them.
Memory for both sides is allocated together and divided between them at random, so that neither has the better region.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

import torch

from harness.judge.input_data.layout import Layout
from harness.judge.isolation.resource_limits import GIB
from harness.runner.device_memory import Physical, Window, bytes_tensor
from harness.runner.driver import CudaError

_MOST, _FEWEST = 64, 4
_BUDGET_BYTES, _BUDGET_SHARE = 4 * GIB, 8
"""All placements of a runner together: at most so many bytes, and one part in so many of the free memory."""
_SIDES = 2
_LARGE_SHARE = 8
"""Of large sets there are at least `_FEWEST` placements, within one part in so many of the free memory."""


def placement_count(size: int, free: int) -> int:
    """Number of placements of `size` bytes for a runner when `free` bytes of device memory are free; at least 1."""
    usual = min(_MOST, min(_BUDGET_BYTES, free // _BUDGET_SHARE) // size)
    return max(1, usual, min(_FEWEST, free // _LARGE_SHARE // size))


class PlacementPool:
    """Physical memory for the placements of the sides that race each other.

    Args:
        unit: granularity of physical memory in bytes.
    """

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._spare: list[Physical] = []
        self._count = 0

    def take(self, layout: Layout) -> Placements:
        """Placements for one side of a workload; what it leaves is for the next side of the same size.

        Raises:
            CudaError: the device has no memory left.
        """
        size = -(-(layout.input_stride + layout.output_stride) // self._unit) * self._unit
        if not self._spare or self._spare[0].bytes != size:
            self.close()
            self._count = placement_count(size, torch.cuda.mem_get_info()[0])
            try:
                for _ in range(_SIDES * self._count):
                    self._spare.append(Physical.create(size))
            except CudaError:
                self.close()
                raise
            secrets.SystemRandom().shuffle(self._spare)
        mine, self._spare = self._spare[: self._count], self._spare[self._count :]
        return Placements(layout, mine)

    def close(self) -> None:
        """Release what no side has taken. No process but the judge's has ever had access to it."""
        while self._spare:
            self._spare.pop().close()


class Placements:
    """Memory of one runner for one workload: at each placement a call's inputs, then its outputs.

    Each placement is a physical allocation of its own, because an exported handle gives access to all of its pages.
    All of it is set to zero before it is exported and again before it is released.

    Args:
        layout: the workload's inputs and outputs.
        memory: the allocations, all of the same size. They are mapped, and their handles closed.

    Raises:
        CudaError: they cannot be mapped or exported.
    """

    def __init__(self, layout: Layout, memory: Sequence[Physical]) -> None:
        self._layout = layout
        self.bytes, self.count = memory[0].bytes, len(memory)
        self._window = Window.reserve(self.count * self.bytes)
        self._descriptors: list[int] = []
        try:
            for number, physical in enumerate(memory):
                self._window.show(physical, number * self.bytes)
                self._descriptors.append(physical.descriptor())
        except CudaError:
            self._close_descriptors()
            self._window.free()
            raise
        finally:
            for physical in memory:
                physical.close()  # the mapping keeps the memory
        self._all: torch.Tensor | None = bytes_tensor(self._window.address, self.count * self.bytes)
        self._all.zero_()
        torch.cuda.synchronize()
        self.untried = list(range(self.count))
        """Placements at which no call has been made."""
        secrets.SystemRandom().shuffle(self.untried)

    def export(self) -> tuple[int, ...]:
        """File descriptors of the placements, in order; the caller sends and closes them. Once."""
        descriptors, self._descriptors = tuple(self._descriptors), []
        return descriptors

    def whole(self, placement: int) -> torch.Tensor:
        """All bytes of a placement."""
        assert self._all is not None  # noqa: S101 - not closed
        return self._all[placement * self.bytes : (placement + 1) * self.bytes]

    def at(self, placement: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and outputs at a placement, as bytes."""
        inputs, outputs = self._layout.input_stride, self._layout.output_stride
        whole = self.whole(placement)
        return whole[:inputs], whole[inputs : inputs + outputs]

    def draw(self, calls: int) -> list[int]:
        """Random placements for so many calls: those without a call so far first, none twice while there are enough."""
        chosen = [self.untried.pop() for _ in range(min(calls, len(self.untried)))]
        while len(chosen) < calls:
            rest = [number for number in range(self.count) if number not in chosen] or list(range(self.count))
            secrets.SystemRandom().shuffle(rest)
            chosen += rest[: calls - len(chosen)]
        return chosen

    def close(self) -> None:
        """Overwrite the memory and give it back."""
        if self._all is not None:
            self._all.zero_()
            torch.cuda.synchronize()
            self._all = None
            self._close_descriptors()
            self._window.free()

    def _close_descriptors(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
