"""Device memory at several placements, for the inputs and outputs of a runner's calls.

The location of buffers in physical memory changes the time of a short kernel by up to 3.4 % (standard deviation; see
docs/clock.md). Therefore each side has several placements, each call uses a random one, and the interval has a term for
them. The memory for both sides is allocated together and divided at random, so that neither side has the better region.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

import torch

from harness.judge.input_data.layout import Layout
from harness.runner.device_memory import AddressRange, PhysicalMemory, bytes_tensor
from harness.runner.driver import CudaError

_RESERVED_SHARE = 8
"""1 / this share of the device's memory is reserved for the judge, so that no candidate can exhaust it."""
_SIDES = 2
_SINGLE_CALL_PLACEMENTS = 4
"""Placements of a runner whose calls are not timed in batches, for example during a recording."""


def reserved_bytes() -> int:
    """Return the bytes that are reserved for the judge."""
    return int(torch.cuda.mem_get_info()[1] // _RESERVED_SHARE)


def reserve_memory() -> None:
    """Allocate and free memory, which torch's caching allocator keeps for this process."""
    free = torch.cuda.mem_get_info()[0]
    reserved = torch.empty(min(free // 2, reserved_bytes()), dtype=torch.uint8, device="cuda")
    del reserved


class PlacementPool:
    """Physical memory for the placements of the two sides of a race.

    Args:
        unit: granularity of physical memory in bytes.
    """

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._spare: list[PhysicalMemory] = []
        self._count = 0

    def take(self, layout: Layout, count: int) -> Placements:
        """Return placements for one side of a workload; the remaining memory is for the next such side.

        Args:
            layout: the workload's inputs and outputs.
            count: number of placements of each side.

        Raises:
            CudaError: the device does not have enough memory.
        """
        size = self._size(layout)
        if not self._spare or (self._spare[0].bytes, self._count) != (size, count):
            self.close()
            self._count = count
            self._spare = allocate(size, _SIDES * count)
            secrets.SystemRandom().shuffle(self._spare)
        memory, self._spare = self._spare[:count], self._spare[count:]
        return Placements(layout, memory)

    def take_few(self, layout: Layout, count: int) -> Placements:
        """Return placements for a runner whose calls are not timed in batches; no other memory is affected.

        Args:
            layout: the workload's inputs and outputs.
            count: largest number of placements.

        Raises:
            CudaError: the device does not have enough memory.
        """
        return Placements(layout, allocate(self._size(layout), min(count, _SINGLE_CALL_PLACEMENTS)))

    def _size(self, layout: Layout) -> int:
        """Return the bytes of a placement."""
        return -(-(layout.input_stride + layout.output_stride) // self._unit) * self._unit

    def close(self) -> None:
        """Release the memory that no side has taken. Only the judge's process has had access to it."""
        while self._spare:
            self._spare.pop().close()


def allocate(size: int, count: int) -> list[PhysicalMemory]:
    """Allocate physical memory, all or none.

    Args:
        size: bytes of each allocation.
        count: number of allocations.

    Raises:
        CudaError: the device does not have enough memory.
    """
    memory: list[PhysicalMemory] = []
    try:
        memory.extend(PhysicalMemory.create(size) for _ in range(count))
    except CudaError:
        for physical in memory:
            physical.close()
        raise
    return memory


class Placements:
    """Memory of one runner for one workload: at each placement the inputs of a call, then its outputs.

    Each placement is a separate physical allocation, because an exported handle gives access to all of its pages. The
    memory is set to zero before it is exported and again before it is released.

    Args:
        layout: the workload's inputs and outputs.
        memory: allocations of the same size, which are mapped, and whose handles are closed.

    Raises:
        CudaError: the memory cannot be mapped or exported.
    """

    def __init__(self, layout: Layout, memory: Sequence[PhysicalMemory]) -> None:
        self._layout = layout
        self.bytes, self.count = memory[0].bytes, len(memory)
        self._addresses = AddressRange.reserve(self.count * self.bytes)
        self._descriptors: list[int] = []
        try:
            for number, physical in enumerate(memory):
                self._addresses.map(physical, number * self.bytes)
                self._descriptors.append(physical.descriptor())
        except CudaError:
            self._close_descriptors()
            self._addresses.free()
            raise
        finally:
            for physical in memory:
                physical.close()  # the mapping keeps the memory
        self._all: torch.Tensor | None = bytes_tensor(self._addresses.address, self.count * self.bytes)
        self._all.zero_()
        torch.cuda.synchronize()
        self.untried = list(range(self.count))
        """Placements at which no call has been made."""
        secrets.SystemRandom().shuffle(self.untried)

    def export(self) -> tuple[int, ...]:
        """Return the file descriptors of the placements, in order; the caller sends and closes them. Call it once."""
        descriptors, self._descriptors = tuple(self._descriptors), []
        return descriptors

    def whole(self, placement: int) -> torch.Tensor:
        """Return all bytes of a placement."""
        assert self._all is not None  # noqa: S101 - not closed
        return self._all[placement * self.bytes : (placement + 1) * self.bytes]

    def at(self, placement: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and the outputs at a placement, as bytes."""
        inputs, outputs = self._layout.input_stride, self._layout.output_stride
        whole = self.whole(placement)
        return whole[:inputs], whole[inputs : inputs + outputs]

    def draw(self, calls: int) -> list[int]:
        """Return random placements for a number of calls, without repetition while there are enough.

        Placements without a call come first.
        """
        chosen = [self.untried.pop() for _ in range(min(calls, len(self.untried)))]
        while len(chosen) < calls:
            unchosen = [number for number in range(self.count) if number not in chosen] or list(range(self.count))
            chosen += secrets.SystemRandom().sample(unchosen, min(calls - len(chosen), len(unchosen)))
        return chosen

    def close(self) -> None:
        """Set the memory to zero and release it."""
        if self._all is not None:
            self._all.zero_()
            torch.cuda.synchronize()
            self._all = None
            self._close_descriptors()
            self._addresses.free()

    def _close_descriptors(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
