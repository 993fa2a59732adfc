"""Device memory that crosses processes: allocated by the judge, exported as a descriptor, mapped by a runner.

CUDA's virtual memory API, which CuPy does not have. Physical memory is a handle; a process that holds its descriptor
can map it; one that does not cannot read it, whatever code it runs. Addresses are reserved once, so that tensors on
them stay valid from mapping to mapping. Source: CUDA Driver API, 'Virtual Memory Management'.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from cuda.bindings import driver as cuda

from .driver import call

_DESCRIPTOR = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _location() -> cuda.CUmemLocation:
    found = cuda.CUmemLocation()
    found.type, found.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    return found


def _properties() -> cuda.CUmemAllocationProp:
    found = cuda.CUmemAllocationProp()
    found.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    found.requestedHandleTypes, found.location = _DESCRIPTOR, _location()
    return found


def granularity() -> int:
    """Physical memory comes in multiples of so many bytes (2 MiB on every GPU so far)."""
    least = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(call(cuda.cuMemGetAllocationGranularity, _properties(), least))


@dataclass
class Physical:
    """Physical device memory of `bytes`, by handle. Close it once: the memory goes when nobody maps it any more."""

    handle: cuda.CUmemGenericAllocationHandle
    bytes: int

    @classmethod
    def create(cls, size: int) -> Physical:
        """New memory, rounded up to the granularity."""
        unit = granularity()
        size = -(-size // unit) * unit
        return cls(call(cuda.cuMemCreate, size, _properties(), 0), size)

    @classmethod
    def receive(cls, descriptor: int, size: int) -> Physical:
        """Memory of another process; closes the descriptor."""
        try:
            return cls(call(cuda.cuMemImportFromShareableHandle, descriptor, _DESCRIPTOR), size)
        finally:
            os.close(descriptor)

    def descriptor(self) -> int:
        """A descriptor that reveals this memory to whom it is sent; the caller closes it."""
        return int(call(cuda.cuMemExportToShareableHandle, self.handle, _DESCRIPTOR, 0))

    def close(self) -> None:
        """Drop the handle."""
        call(cuda.cuMemRelease, self.handle)


@dataclass
class Window:
    """Reserved device addresses, with or without memory behind them."""

    address: int
    bytes: int
    mapped: list[tuple[int, int]] = field(default_factory=list)
    """(offset, bytes) of each part that has memory behind it."""

    @classmethod
    def reserve(cls, size: int) -> Window:
        """Reserve addresses for `size` bytes (a multiple of the granularity)."""
        return cls(int(call(cuda.cuMemAddressReserve, size, 0, 0, 0)), size)

    def show(self, memory: Physical, offset: int = 0) -> None:
        """Map memory at an offset (a multiple of the granularity), readable and writable."""
        base = self.address + offset
        call(cuda.cuMemMap, base, memory.bytes, 0, memory.handle, 0)
        access = cuda.CUmemAccessDesc()
        access.location, access.flags = _location(), cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call(cuda.cuMemSetAccess, base, memory.bytes, [access], 1)
        self.mapped.append((offset, memory.bytes))

    def hide(self) -> None:
        """Take the memory away again; the addresses stay reserved."""
        while self.mapped:
            offset, size = self.mapped.pop()
            call(cuda.cuMemUnmap, self.address + offset, size)

    def free(self) -> None:
        """Give back the addresses."""
        self.hide()
        call(cuda.cuMemAddressFree, self.address, self.bytes)


class _Bytes:
    """Device bytes as the CUDA array interface describes them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None, "stream": None,
        }  # fmt: skip


def bytes_tensor(address: int, size: int) -> Any:  # noqa: ANN401 - a torch tensor; torch is imported late here
    """A uint8 torch tensor on mapped device memory that torch does not own."""
    import torch  # noqa: PLC0415 - the CPU's runners have it already, the builder never needs it

    return torch.as_tensor(_Bytes(address, size), device="cuda")
