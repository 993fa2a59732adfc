"""Device memory that crosses processes: allocated by the judge, exported as a descriptor, mapped by a runner.

CUDA's virtual memory API. Physical memory is a handle; a process that holds its descriptor can map it; one that does
not cannot read it, whatever code it runs. Addresses are reserved once, so that tensors on them stay valid from mapping
to mapping. Source: CUDA Driver API, 'Virtual Memory Management'.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from typing import Any

from .driver import Driver

_POSIX_DESCRIPTOR = 1
_PINNED = 1
_ON_DEVICE = 1
_READ_WRITE = 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def granularity(driver: Driver, device: int = 0) -> int:
    """Physical memory comes in multiples of so many bytes (2 MiB on every GPU so far)."""
    size = ctypes.c_size_t()
    properties = _Properties(_PINNED, _POSIX_DESCRIPTOR, _Location(_ON_DEVICE, device))
    driver.call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(properties), ctypes.c_int(0))
    return size.value


@dataclass
class Physical:
    """Physical device memory of `bytes`, by handle. Close it once: the memory goes when nobody maps it any more."""

    driver: Driver
    handle: int
    bytes: int

    @classmethod
    def create(cls, driver: Driver, size: int, device: int = 0) -> Physical:
        """New memory, rounded up to the granularity."""
        unit = granularity(driver, device)
        size = -(-size // unit) * unit
        properties = _Properties(_PINNED, _POSIX_DESCRIPTOR, _Location(_ON_DEVICE, device))
        handle = ctypes.c_ulonglong()
        driver.call(
            "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_ulonglong(0)
        )
        return cls(driver, handle.value, size)

    @classmethod
    def receive(cls, driver: Driver, descriptor: int, size: int) -> Physical:
        """Memory of another process; closes the descriptor."""
        handle = ctypes.c_ulonglong()
        try:
            kind = ctypes.c_int(_POSIX_DESCRIPTOR)
            driver.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), kind)
        finally:
            os.close(descriptor)
        return cls(driver, handle.value, size)

    def descriptor(self) -> int:
        """A descriptor that reveals this memory to whom it is sent; the caller closes it."""
        found = ctypes.c_int()
        handle = ctypes.c_ulonglong(self.handle)
        kind = ctypes.c_int(_POSIX_DESCRIPTOR)
        self.driver.call("cuMemExportToShareableHandle", ctypes.byref(found), handle, kind, ctypes.c_ulonglong(0))
        return found.value

    def close(self) -> None:
        """Drop the handle."""
        self.driver.call("cuMemRelease", ctypes.c_ulonglong(self.handle))


@dataclass
class Window:
    """Reserved device addresses, with or without memory behind them."""

    driver: Driver
    address: int
    bytes: int
    mapped: list[tuple[int, int]] = field(default_factory=list)
    """(offset, bytes) of each part that has memory behind it."""

    @classmethod
    def reserve(cls, driver: Driver, size: int) -> Window:
        """Reserve addresses for `size` bytes (a multiple of the granularity)."""
        address = ctypes.c_ulonglong()
        none = ctypes.c_ulonglong(0)
        driver.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0), none, none)
        return cls(driver, address.value, size)

    def show(self, memory: Physical, offset: int = 0, device: int = 0) -> None:
        """Map memory at an offset (a multiple of the granularity), readable and writable."""
        base, length = ctypes.c_ulonglong(self.address + offset), ctypes.c_size_t(memory.bytes)
        none = ctypes.c_ulonglong(0)
        self.driver.call("cuMemMap", base, length, ctypes.c_size_t(0), ctypes.c_ulonglong(memory.handle), none)
        access = _Access(_Location(_ON_DEVICE, device), _READ_WRITE)
        self.driver.call("cuMemSetAccess", base, length, ctypes.byref(access), ctypes.c_size_t(1))
        self.mapped.append((offset, memory.bytes))

    def hide(self) -> None:
        """Take the memory away again; the addresses stay reserved."""
        while self.mapped:
            offset, size = self.mapped.pop()
            self.driver.call("cuMemUnmap", ctypes.c_ulonglong(self.address + offset), ctypes.c_size_t(size))

    def free(self) -> None:
        """Give back the addresses."""
        self.hide()
        self.driver.call("cuMemAddressFree", ctypes.c_ulonglong(self.address), ctypes.c_size_t(self.bytes))


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
