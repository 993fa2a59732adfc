"""The device memory a runner works on: one workload's inputs and outputs at several placements.

A placement is physical memory of its own: a call's inputs, then its outputs. The judge writes the inputs of the next
call to one of them, and only those of that call. Python scalars come in a small file of shared host memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .arena import SCALAR_FORMATS, ArenaField
from .device_memory import Physical, Window, bytes_tensor


class CudaArena:
    """Reserved device addresses, the placements mapped there, and the scalars."""

    def __init__(self, descriptors: Sequence[int], message: dict[str, Any]) -> None:
        """Reserve the window and map the scalars; nothing of the judge's memory is seen yet."""
        self.scalars = mmap.mmap(descriptors[0], message["scalar_bytes"], mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(descriptors[0])
        torch.zeros(1, device="cuda")
        self._window, self.all = window(message["window_bytes"])

    @property
    def address(self) -> int:
        """Where the first slot begins."""
        return self._window.address

    def workload(self, message: dict[str, Any]) -> CudaWorkload:
        """From the judge's JSON."""
        return CudaWorkload(
            arena=self,
            inputs=tuple(ArenaField.of(field) for field in message["inputs"]),
            outputs=tuple(ArenaField.of(field) for field in message["outputs"]),
            input_stride=message["input_stride"],
            stride=message["placement_bytes"],
            slots=message["slots"],
            axes=tuple(message["axes"]),
            variant=message["variant"],
            plan=message.get("plan", {}),
        )

    def map(self, descriptors: Sequence[int], size: int) -> None:
        """Map a workload's placements, of `size` bytes each, in place of those of the workload before."""
        self._window.hide()
        for number, descriptor in enumerate(descriptors):
            memory = Physical.receive(descriptor, size)
            self._window.show(memory, number * size)
            memory.close()  # the mapping keeps it


def window(size: int) -> tuple[Window, torch.Tensor]:
    """Reserved addresses, and their bytes as a tensor, usable whenever memory is shown.

    Torch looks at what an address is when it makes a tensor there, so that something must be mapped at that moment.
    """
    reserved = Window.reserve(size)
    some = Physical.create(1)
    reserved.show(some)
    whole: torch.Tensor = bytes_tensor(reserved.address, size)
    reserved.hide()
    some.close()
    return reserved, whole


@dataclass(frozen=True)
class CudaWorkload:
    """The layout of one workload's slots on the device."""

    arena: CudaArena
    inputs: tuple[ArenaField, ...]
    outputs: tuple[ArenaField, ...]
    input_stride: int
    stride: int
    """Bytes from placement to placement."""
    slots: int
    """Placements."""
    axes: tuple[int, ...]
    variant: str
    plan: dict[str, Any]
    """Of a sealed solution: `ResolvedPlan` as plain data."""

    def _tensor(self, field: ArenaField, begin: int) -> torch.Tensor:
        at = begin + field.offset
        flat = self.arena.all[at : at + field.bytes].view(getattr(torch, field.dtype))
        return flat.view(field.shape)

    def input_tensors(self, slot: int) -> list[Any]:
        """The inputs of one slot in order, None where a Python scalar stands."""
        return [None if field.scalar else self._tensor(field, slot * self.stride) for field in self.inputs]

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        """The outputs of one slot in order."""
        return [self._tensor(field, slot * self.stride + self.input_stride) for field in self.outputs]

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        """(position among the inputs, kind, view such that view[slot] is the value) of each Python scalar."""
        found = []
        for position, field in enumerate(self.inputs):
            if field.scalar:
                view = memoryview(self.arena.scalars)[8 * position :]
                whole = view[: len(view) // 8 * 8].cast(SCALAR_FORMATS[field.scalar])  # type: ignore[call-overload]
                found.append((position, field.scalar, whole[:: len(self.inputs)]))
        return found
