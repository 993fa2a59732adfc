"""Device memory shared between processes: the judge allocates and exports it, and a runner maps it.

CUDA's virtual memory API, which CuPy does not have. Physical memory is a handle. Only a process that has a file
descriptor of it can map and read it, whatever code the process runs. Addresses are reserved once, so that tensors
there remain valid when other memory is mapped. Source: CUDA Driver API, 'Virtual Memory Management'.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from cuda.bindings import driver as cuda

from .driver import call

_DESCRIPTOR = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _location() -> cuda.CUmemLocation:
    location = cuda.CUmemLocation()
    location.type, location.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    return location


def _properties() -> cuda.CUmemAllocationProp:
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.requestedHandleTypes, properties.location = _DESCRIPTOR, _location()
    return properties


def granularity() -> int:
    """Return the bytes of which physical memory is a multiple (2 MiB on every GPU tested so far)."""
    minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(call(cuda.cuMemGetAllocationGranularity, _properties(), minimum))


@dataclass
class PhysicalMemory:
    """Physical device memory of `bytes`, by handle.

    Close it once; the driver frees the memory when no process has a handle or a mapping of it.
    """

    handle: cuda.CUmemGenericAllocationHandle
    bytes: int

    @classmethod
    def create(cls, size: int) -> PhysicalMemory:
        """Allocate memory; its size is rounded up to the granularity."""
        unit = granularity()
        size = -(-size // unit) * unit
        return cls(call(cuda.cuMemCreate, size, _properties(), 0), size)

    @classmethod
    def receive(cls, descriptor: int, size: int) -> PhysicalMemory:
        """Import memory of another process.

        Args:
            descriptor: file descriptor that the other process exported; it is closed.
            size: bytes of the memory.
        """
        try:
            return cls(call(cuda.cuMemImportFromShareableHandle, descriptor, _DESCRIPTOR), size)
        finally:
            os.close(descriptor)

    def descriptor(self) -> int:
        """Return a file descriptor with which another process can map this memory; the caller closes it."""
        return int(call(cuda.cuMemExportToShareableHandle, self.handle, _DESCRIPTOR, 0))

    def close(self) -> None:
        """Drop the handle."""
        call(cuda.cuMemRelease, self.handle)


@dataclass
class AddressRange:
    """Reserved device addresses, with or without memory behind them."""

    address: int
    bytes: int
    mapped: list[tuple[int, int]] = field(default_factory=list)
    """(offset, bytes) of each part that has memory behind it."""

    @classmethod
    def reserve(cls, size: int) -> AddressRange:
        """Reserve addresses for `size` bytes (a multiple of the granularity)."""
        return cls(int(call(cuda.cuMemAddressReserve, size, 0, 0, 0)), size)

    def map(self, memory: PhysicalMemory, offset: int = 0) -> None:
        """Map memory, readable and writable.

        Args:
            memory: physical memory.
            offset: bytes from the first reserved address, a multiple of the granularity.
        """
        base = self.address + offset
        call(cuda.cuMemMap, base, memory.bytes, 0, memory.handle, 0)
        access = cuda.CUmemAccessDesc()
        access.location, access.flags = _location(), cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call(cuda.cuMemSetAccess, base, memory.bytes, [access], 1)
        self.mapped.append((offset, memory.bytes))

    def unmap(self) -> None:
        """Unmap all memory; the addresses remain reserved."""
        while self.mapped:
            offset, size = self.mapped.pop()
            call(cuda.cuMemUnmap, self.address + offset, size)

    def free(self) -> None:
        """Unmap all memory and release the addresses."""
        self.unmap()
        call(cuda.cuMemAddressFree, self.address, self.bytes)


class _Bytes:
    """Device bytes as the CUDA array interface describes them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None, "stream": None,
        }  # fmt: skip


def bytes_tensor(address: int, size: int) -> Any:  # noqa: ANN401 - a torch tensor; torch is imported late here
    """Return a uint8 torch tensor of mapped device memory, which torch does not own.

    Args:
        address: device address.
        size: bytes.
    """
    import torch  # noqa: PLC0415 - the CPU's runners have it already, the builder never needs it

    return torch.as_tensor(_Bytes(address, size), device="cuda")
