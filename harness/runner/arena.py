"""The shared memory a runner works on: inputs it can only read, outputs it writes, laid out in equal slots.

A slot holds one set: the inputs of one call, or its outputs. Python scalars lie in the slot too, eight bytes each.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch  # a runner of compiled code starts without it, in a tenth of the time

SCALAR_FORMATS = {"int": "q", "bool": "q", "float": "d"}


@dataclass(frozen=True)
class ArenaField:
    """One input or output in a slot. `scalar` is int, bool or float for a Python scalar, else None."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    scalar: str | None
    updates: str | None = None
    """Of an output: the input whose content it has before each call."""

    @classmethod
    def of(cls, message: dict[str, Any]) -> ArenaField:
        """From the judge's JSON."""
        return cls(**{**message, "shape": tuple(message["shape"])})


class Sets(Protocol):
    """One workload's slots, wherever they lie: what a Python solution is called with."""

    @property
    def inputs(self) -> tuple[ArenaField, ...]:
        """In order."""

    @property
    def outputs(self) -> tuple[ArenaField, ...]:
        """In order."""

    @property
    def slots(self) -> int:
        """Number of slots."""

    @property
    def variant(self) -> str:
        """Variant of a baseline (`harness.model.judging.Variant`)."""

    def input_tensors(self, slot: int) -> list[Any]:
        """The inputs of one slot in order, None where a Python scalar stands."""

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        """The outputs of one slot in order."""

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        """(position among the inputs, kind, view such that view[slot] is the value) of each Python scalar."""


@dataclass(frozen=True)
class Arena:
    """Both mappings, populated so that no page is faulted in while the clock runs."""

    inputs: mmap.mmap
    outputs: mmap.mmap

    @classmethod
    def attach(cls, descriptors: Sequence[int], input_bytes: int, output_bytes: int) -> Arena:
        """Map the judge's memory files: the inputs' is sealed against writing."""
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        arena = cls(
            mmap.mmap(descriptors[0], input_bytes, flags, mmap.PROT_READ),
            mmap.mmap(descriptors[1], output_bytes, flags, mmap.PROT_READ | mmap.PROT_WRITE),
        )
        for descriptor in descriptors:
            os.close(descriptor)
        for memory in (arena.inputs, arena.outputs):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_NOHUGEPAGE)  # or the kernel may make some, of one side only, as time goes by
        return arena


class _PyBuffer(ctypes.Structure):
    """`Py_buffer`, as Python's stable ABI has it since 3.11 (C API, "Buffer Protocol")."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


def address(memory: mmap.mmap) -> int:
    """First address of a mapping. ctypes itself has no way to ask this of memory that can only be read."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(view), 0)
    begin = int(view.buf)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return begin


@dataclass(frozen=True)
class ArenaWorkload:
    """The layout of one workload's slots."""

    arena: Arena
    inputs: tuple[ArenaField, ...]
    outputs: tuple[ArenaField, ...]
    input_stride: int
    output_stride: int
    slots: int
    axes: tuple[int, ...]
    """Sizes of var and expr axes, in declaration order."""
    variant: str

    @classmethod
    def of(cls, message: dict[str, Any], arena: Arena) -> ArenaWorkload:
        """From the judge's JSON."""
        return cls(
            arena=arena,
            inputs=tuple(ArenaField.of(field) for field in message["inputs"]),
            outputs=tuple(ArenaField.of(field) for field in message["outputs"]),
            input_stride=message["input_stride"],
            output_stride=message["output_stride"],
            slots=message["slots"],
            axes=tuple(message["axes"]),
            variant=message["variant"],
        )

    def input_tensors(self, slot: int) -> list[Any]:
        """The inputs of one slot in order, None where a Python scalar stands."""
        base = slot * self.input_stride
        return [None if field.scalar else _tensor(self.arena.inputs, field, base) for field in self.inputs]

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        """The outputs of one slot in order."""
        return [_tensor(self.arena.outputs, field, slot * self.output_stride) for field in self.outputs]

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        """(position among the inputs, kind, view such that view[slot] is the value) of each Python scalar."""
        found = []
        for position, field in enumerate(self.inputs):
            if field.scalar:
                end = field.offset + (self.slots - 1) * self.input_stride + 8
                view = memoryview(self.arena.inputs)[field.offset : end].cast(SCALAR_FORMATS[field.scalar])  # type: ignore[call-overload]
                found.append((position, field.scalar, view[:: self.input_stride // 8]))
        return found


def _tensor(memory: mmap.mmap, field: ArenaField, base: int) -> torch.Tensor:
    import torch  # noqa: PLC0415 - see above

    dtype = getattr(torch, field.dtype)
    count = field.bytes // dtype.itemsize
    if count == 0:
        return torch.empty(field.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=base + field.offset).view(field.shape)
