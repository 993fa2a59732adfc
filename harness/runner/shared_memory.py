"""Shared memory of the judge and a CPU runner: read-only inputs and writable outputs, divided into slots of equal size.

A slot holds the inputs of one call, or its outputs. A Python scalar takes eight bytes of the slot.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from .messages import HostMemory, Prepare, SlotField

if TYPE_CHECKING:
    import torch  # not at run time: a runner of compiled code starts ten times faster without it

SCALAR_FORMATS = {"int": "q", "bool": "q", "float": "d"}


@dataclass(frozen=True)
class WorkloadSlots(ABC):
    """The slots of one workload, in host or device memory: arguments of a Python solution."""

    inputs: tuple[SlotField, ...]
    """Inputs in the order of the definition."""
    outputs: tuple[SlotField, ...]
    """Outputs in the order of the definition."""
    input_stride: int
    """Bytes of the inputs of one slot."""
    slots: int
    axes: tuple[int, ...]
    """Sizes of var and expr axes, in declaration order."""
    variant: str
    """Variant of a baseline (`harness.model.judging.Variant`)."""

    @classmethod
    def of(cls, message: Prepare, **memory: Any) -> Self:  # noqa: ANN401 - fields of a subclass
        """Return the workload of a message.

        Args:
            message: the judge's request to prepare a workload.
            memory: fields that the subclass adds.
        """
        return cls(
            inputs=message.inputs,
            outputs=message.outputs,
            input_stride=message.input_stride,
            slots=message.slots,
            axes=message.axes,
            variant=message.variant,
            **memory,
        )

    @abstractmethod
    def input_tensors(self, slot: int) -> list[Any]:
        """Return the inputs of one slot in order, with None in the place of a Python scalar."""

    @abstractmethod
    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        """Return the outputs of one slot in order."""

    @abstractmethod
    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        """Return (position among the inputs, kind, view) of each Python scalar; view[slot] is its value."""


@dataclass(frozen=True)
class SharedMemory:
    """Both mappings. Their pages are populated at once, so that no page fault occurs in a timed call."""

    inputs: mmap.mmap
    outputs: mmap.mmap

    @classmethod
    def attach(cls, descriptors: Sequence[int], sizes: HostMemory) -> SharedMemory:
        """Map the judge's memory files and close their descriptors.

        Args:
            descriptors: memory file of the inputs, which is sealed against writing, and that of the outputs.
            sizes: of both files.
        """
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mappings = cls(
            mmap.mmap(descriptors[0], sizes.input_bytes, flags, mmap.PROT_READ),
            mmap.mmap(descriptors[1], sizes.output_bytes, flags, mmap.PROT_READ | mmap.PROT_WRITE),
        )
        for descriptor in descriptors:
            os.close(descriptor)
        for memory in (mappings.inputs, mappings.outputs):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                # The kernel could otherwise merge pages of one side only, while the sides are compared.
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        return mappings


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of Python's stable ABI since 3.11. Source: Python C API, "Buffer Protocol"."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


def address(memory: mmap.mmap) -> int:
    """Return the first address of a mapping; ctypes has no function for this that accepts read-only memory."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(view), 0)
    begin = int(view.buf)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return begin


@dataclass(frozen=True)
class HostWorkload(WorkloadSlots):
    """The slots of one workload in host memory."""

    memory: SharedMemory
    output_stride: int

    def input_tensors(self, slot: int) -> list[Any]:
        """See `WorkloadSlots`."""
        base = slot * self.input_stride
        return [None if field.scalar else _tensor(self.memory.inputs, field, base) for field in self.inputs]

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        """See `WorkloadSlots`."""
        return [_tensor(self.memory.outputs, field, slot * self.output_stride) for field in self.outputs]

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        """See `WorkloadSlots`."""
        readers = []
        for position, field in enumerate(self.inputs):
            if field.scalar:
                end = field.offset + (self.slots - 1) * self.input_stride + 8
                view = memoryview(self.memory.inputs)[field.offset : end].cast(SCALAR_FORMATS[field.scalar])  # type: ignore[call-overload]
                readers.append((position, field.scalar, view[:: self.input_stride // 8]))
        return readers


def _tensor(memory: mmap.mmap, field: SlotField, base: int) -> torch.Tensor:
    import torch  # noqa: PLC0415 - as at the top

    if field.bytes == 0:
        return torch.empty(field.shape, dtype=getattr(torch, field.dtype))
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=field.bytes, offset=base + field.offset)
    return tensor_of_bytes(raw, field)


def tensor_of_bytes(raw: torch.Tensor, field: SlotField) -> torch.Tensor:
    """Return the tensor of a field, which is not a view of another tensor and has the storage of its bytes.

    `torch.compile` refuses functions that write to views of several dtypes of one storage. A user's tensors have a
    storage each, and so have those of a call.

    Args:
        raw: the field's bytes, a tensor that has a storage of its own.
        field: the input or output.
    """
    import torch  # noqa: PLC0415 - as at the top

    strides = torch.empty(field.shape, device="meta").stride()
    tensor = torch.empty(0, dtype=getattr(torch, field.dtype), device=raw.device)
    return tensor.set_(raw.untyped_storage(), 0, field.shape, strides)
