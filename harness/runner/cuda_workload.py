"""Device memory of the judge and a GPU runner: the inputs and outputs of a workload at several placements.

A placement is a separate allocation of physical memory: the inputs of a call, then its outputs. Before each call, the
judge writes the inputs of this call only, to one placement. Python scalars are in a small file of shared host memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .device_memory import AddressRange, PhysicalMemory, bytes_tensor
from .messages import DeviceMemory, Prepare, SlotField
from .shared_memory import SCALAR_FORMATS, WorkloadSlots, tensor_of_bytes


class PlacementMemory:
    """Reserved device addresses, the placements mapped there, and the Python scalars."""

    def __init__(self, descriptor: int, sizes: DeviceMemory) -> None:
        """Reserve the addresses and map the scalars. No device memory of the judge is mapped yet.

        Args:
            descriptor: the file of the scalars; it is closed.
            sizes: of the addresses and of the file.
        """
        self.scalars = mmap.mmap(descriptor, sizes.scalar_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(descriptor)
        torch.zeros(1, device="cuda")
        self._window = AddressRange.reserve(sizes.window_bytes)

    @property
    def address(self) -> int:
        """Device address of the first placement."""
        return self._window.address

    def workload(self, message: Prepare) -> CudaWorkload:
        """Return the workload of a message."""
        return CudaWorkload.of(message, memory=self, stride=message.placement_bytes, plan=message.plan)

    def map(self, descriptors: Sequence[int], size: int) -> None:
        """Replace the mapped placements by those of another workload.

        Args:
            descriptors: physical memory of each placement, in order; they are closed.
            size: bytes of a placement, a multiple of the granularity.
        """
        self._window.unmap()
        for number, descriptor in enumerate(descriptors):
            memory = PhysicalMemory.receive(descriptor, size)
            self._window.map(memory, number * size)
            memory.close()  # the mapping keeps it


@dataclass(frozen=True)
class CudaWorkload(WorkloadSlots):
    """The slots of one workload in device memory; a slot is a placement."""

    memory: PlacementMemory
    stride: int
    """Bytes from one placement to the next."""
    plan: Mapping[str, Any]
    """Of a sealed solution: `ResolvedPlan` as plain data."""

    def _tensor(self, field: SlotField, begin: int) -> torch.Tensor:
        """Return a tensor with a storage of its own. Its memory must be mapped, because torch checks the address."""
        if field.bytes == 0:
            return torch.empty(field.shape, dtype=getattr(torch, field.dtype), device="cuda")
        return tensor_of_bytes(bytes_tensor(self.memory.address + begin + field.offset, field.bytes), field)

    def input_tensors(self, slot: int) -> list[Any]:
        """See `WorkloadSlots`."""
        return [None if field.scalar else self._tensor(field, slot * self.stride) for field in self.inputs]

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        """See `WorkloadSlots`."""
        return [self._tensor(field, slot * self.stride + self.input_stride) for field in self.outputs]

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        """See `WorkloadSlots`."""
        readers = []
        for position, field in enumerate(self.inputs):
            if field.scalar:
                view = memoryview(self.memory.scalars)[8 * position :]
                whole = view[: len(view) // 8 * 8].cast(SCALAR_FORMATS[field.scalar])  # type: ignore[call-overload]
                readers.append((position, field.scalar, whole[:: len(self.inputs)]))
        return readers
