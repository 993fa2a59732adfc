"""The sets of one side: inputs and outputs at several placements, which the judge exports and the runner maps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

_GRANULARITY = 2 << 20


def stride_of(set_bytes: int) -> int:
    """Return the bytes from one placement to the next, a multiple of the granularity of physical memory."""
    return -(-set_bytes // _GRANULARITY) * _GRANULARITY


@dataclass
class Sets:
    """Placements at equal distances, inputs and outputs separate; each has its own handle of physical memory."""

    gpu: Any
    count: int
    stride: int
    inputs: int
    outputs: int
    handles: list[Any]

    @classmethod
    def create(cls, gpu: Any, count: int, set_bytes: int) -> tuple[Sets, list[int]]:  # noqa: ANN401
        """Allocate memory and return it with the descriptors that export it, inputs first.

        Args:
            gpu: the GPU.
            count: number of placements.
            set_bytes: bytes of a set's inputs, and of its outputs.
        """
        allocations = [gpu.create(stride_of(set_bytes)) for _ in range(2 * count)]
        descriptors = [descriptor for descriptor, _ in allocations]
        return cls._map(gpu, count, set_bytes, [handle for _, handle in allocations]), descriptors

    @classmethod
    def receive(cls, gpu: Any, count: int, set_bytes: int, descriptors: list[int]) -> Sets:  # noqa: ANN401
        """Map memory of the judge and close the descriptors.

        Args:
            gpu: the GPU.
            count: number of placements.
            set_bytes: bytes of a set's inputs, and of its outputs.
            descriptors: the judge's descriptors, inputs first.
        """
        handles = [gpu.receive(descriptor) for descriptor in descriptors]
        for descriptor in descriptors:
            os.close(descriptor)
        return cls._map(gpu, count, set_bytes, handles)

    @classmethod
    def _map(cls, gpu: Any, count: int, set_bytes: int, handles: list[Any]) -> Sets:  # noqa: ANN401
        stride = stride_of(set_bytes)
        inputs, outputs = gpu.reserve(count * stride), gpu.reserve(count * stride)
        for index, handle in enumerate(handles):
            base = inputs if index < count else outputs
            gpu.map(base + index % count * stride, handle, stride)
        return cls(gpu, count, stride, inputs, outputs, handles)

    def close(self) -> None:
        """Unmap all memory and release the addresses."""
        for index, handle in enumerate(self.handles):
            base = self.inputs if index < self.count else self.outputs
            self.gpu.unmap(base + index % self.count * self.stride, handle, self.stride)
        for base in (self.inputs, self.outputs):
            self.gpu.unreserve(base, self.count * self.stride)
