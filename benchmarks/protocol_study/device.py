"""GPU operations of both processes: kernels, copies, streams, and memory that one process exports to the other.

CuPy provides the runtime, cuda.bindings virtual memory and stream memory operations. `DryGpu` has the same methods
without effect, so that processes, messages and results can be tested without a GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).with_name("kernels.cu")
BLOCK = 256
KERNELS = (
    "fill", "poison", "read_all", "copy_words", "known", "check", "check_inputs", "empty", "work", "work_all",
    "touch_last", "work_last", "spin_ns", "spin_until", "gate", "work_indirect", "resident",
)  # fmt: skip

u64, i64, i32, u32 = np.uint64, np.int64, np.int32, np.uint32


def _unwrap(result: tuple[Any, ...]) -> Any:  # noqa: ANN401 - handles of several types
    """Return the value of a cuda.bindings call, or raise its error."""
    code, *values = result
    if int(code):
        raise RuntimeError(f"a CUDA driver call failed: {code}")
    return values[0] if values else None


class Gpu:
    """A context on device 0 with the study's kernels."""

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver

        self.cupy, self.driver, self.runtime = cupy, driver, cupy.cuda.runtime
        cupy.cuda.Device(0).use()
        self.runtime.free(0)
        module = cupy.RawModule(code=SOURCE.read_text(), options=("-std=c++17",))
        self._functions = {name: module.get_function(name).kernel for name in KERNELS}
        kinds = driver.CUmemAllocationHandleType
        self._handle_type = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        location = driver.CUmemLocation()
        location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.requestedHandleTypes = self._handle_type
        self._properties.location = location
        self._access = driver.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._attributes = driver.CUmemcpyAttributes()
        self._attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        self._attributes.flags = int(driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
        self._pinned: list[Any] = []

    def facts(self) -> dict[str, str]:
        """Return the device's properties and library versions."""
        properties = self.runtime.getDeviceProperties(0)
        return {
            "device": properties["name"].decode(),
            "multiprocessors": str(properties["multiProcessorCount"]),
            "l2_bytes": str(properties["l2CacheSize"]),
            "driver": str(self.runtime.driverGetVersion()),
            "cupy": self.cupy.__version__,
        }

    def stream(self) -> Any:  # noqa: ANN401 - a CuPy stream
        """Return a stream that does not wait for the default stream."""
        return self.cupy.cuda.Stream(non_blocking=True)

    def launch(self, name: str, grid: tuple[int, ...], arguments: tuple[Any, ...], stream: Any) -> None:  # noqa: ANN401
        """Launch a kernel with blocks of 256 threads (`empty`, `known`, `gate` and `spin_until` too).

        Args:
            name: name of the kernel.
            grid: number of blocks in each dimension.
            arguments: arguments of the kernel.
            stream: CuPy stream.
        """
        self._functions[name](grid, (BLOCK,), arguments, 0, stream)

    def launch_thread(self, name: str, arguments: tuple[Any, ...], stream: Any) -> None:  # noqa: ANN401
        """Launch one thread.

        Args:
            name: name of the kernel.
            arguments: arguments of the kernel.
            stream: CuPy stream.
        """
        self._functions[name]((1,), (1,), arguments, 0, stream)

    def copy(self, target: int, source: int, size: int, stream: Any) -> None:  # noqa: ANN401
        """Copy asynchronously between host and device or within the device, as the addresses imply.

        Args:
            target: destination address.
            source: source address.
            size: size in bytes.
            stream: CuPy stream.
        """
        self.runtime.memcpyAsync(target, source, size, self.runtime.memcpyDefault, stream.ptr)

    def copy_by_engine(self, target: int, source: int, size: int, stream: Any) -> None:  # noqa: ANN401
        """Copy within the device by a copy engine; on an H200 an ordinary copy is a kernel.

        Args:
            target: destination address.
            source: source address.
            size: size in bytes.
            stream: CuPy stream.
        """
        pointer = self.driver.CUdeviceptr
        batch = [pointer(target)], [pointer(source)], [size], 1, [self._attributes], [0], 1
        _unwrap(self.driver.cuMemcpyBatchAsync(*batch, stream.ptr))

    def copy_column(self, target: int, source: int, pitch: int, rows: int, stream: Any) -> None:  # noqa: ANN401
        """Copy one 32-bit word of each row to host memory.

        Args:
            target: destination address.
            source: source address.
            pitch: bytes from one row to the next.
            rows: number of rows.
            stream: CuPy stream.
        """
        self.runtime.memcpy2DAsync(target, 4, source, pitch, 4, rows, self.runtime.memcpyDeviceToHost, stream.ptr)

    def synchronize(self, stream: Any) -> None:  # noqa: ANN401
        """Wait for a stream."""
        stream.synchronize()

    def done(self, stream: Any) -> bool:  # noqa: ANN401
        """Return true if all work of a stream is complete."""
        return bool(stream.done)

    def allocate(self, size: int) -> int:
        """Allocate device memory, set it to zero and return its address."""
        address = int(self.runtime.malloc(size))
        self.runtime.memset(address, 0, size)
        return address

    def zero(self, address: int, size: int) -> None:
        """Set device memory to zero and wait.

        Args:
            address: start address.
            size: size in bytes.
        """
        self.runtime.memset(address, 0, size)
        self.runtime.deviceSynchronize()

    def free(self, address: int) -> None:
        """Free memory of `allocate`."""
        self.runtime.free(address)

    def pinned(self, size: int) -> tuple[int, memoryview]:
        """Allocate pinned host memory of zeros; return its address, which the device uses too, and its 64-bit words."""
        memory = self.cupy.cuda.alloc_pinned_memory(size)
        self._pinned.append(memory)
        ctypes.memset(memory.ptr, 0, size)
        return int(memory.ptr), memoryview((ctypes.c_char * size).from_address(memory.ptr)).cast("B").cast("q")

    def free_pinned(self) -> None:
        """Free all pinned memory of this process."""
        self._pinned.clear()

    def register(self, address: int, size: int) -> int:
        """Map host memory for the device and return the device's address.

        Args:
            address: start address.
            size: size in bytes.
        """
        self.runtime.hostRegister(address, size, 2)
        return int(_unwrap(self.driver.cuMemHostGetDevicePointer(address, 0)))

    def event(self) -> Any:  # noqa: ANN401 - a CuPy event
        """Return a timing event."""
        return self.cupy.cuda.Event()

    def elapsed_us(self, start: Any, stop: Any) -> float:  # noqa: ANN401
        """Return the microseconds between two completed events.

        Args:
            start: first event.
            stop: second event.
        """
        return float(self.cupy.cuda.get_elapsed_time(start, stop)) * 1e3

    def read_ints(self, address: int, count: int) -> list[int]:
        """Return 32-bit words of device memory.

        Args:
            address: start address.
            count: number of words.
        """
        target = np.empty(count, np.int32)
        self.runtime.memcpy(target.ctypes.data, address, 4 * count, self.runtime.memcpyDeviceToHost)
        return [int(value) for value in target]

    def reset_persisting(self) -> None:
        """Reset all persisting L2 lines to normal ones."""
        _unwrap(self.driver.cuCtxResetPersistingL2Cache())

    def persist(self, stream: Any, address: int, size: int) -> None:  # noqa: ANN401
        """Request persisting L2 lines for a stream's accesses to a range of addresses.

        Args:
            stream: CuPy stream.
            address: start address.
            size: size in bytes.
        """
        driver = self.driver
        limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        max_persisting = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE
        _unwrap(driver.cuCtxSetLimit(limit, _unwrap(driver.cuDeviceGetAttribute(max_persisting, 0))))
        window = driver.CUaccessPolicyWindow()
        window.base_ptr, window.num_bytes, window.hitRatio = address, size, 1.0
        window.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
        window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
        value = driver.CUstreamAttrValue()
        value.accessPolicyWindow = window
        attribute = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        _unwrap(driver.cuStreamSetAttribute(stream.ptr, attribute, value))

    def wait_not_poison(self, stream: Any, address: int) -> None:  # noqa: ANN401
        """Hold a stream until a 32-bit word differs from 0xFFFFFFFF.

        Args:
            stream: CuPy stream.
            address: device address of the word.
        """
        flag = self.driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_NOR
        _unwrap(self.driver.cuStreamWaitValue32(stream.ptr, address, 0, int(flag)))

    def wait_equal(self, stream: Any, address: int, value: int) -> None:  # noqa: ANN401
        """Hold a stream until a 32-bit word has this value.

        Args:
            stream: CuPy stream.
            address: device address of the word.
            value: value of the word.
        """
        flag = self.driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        _unwrap(self.driver.cuStreamWaitValue32(stream.ptr, address, value, int(flag)))

    def write_word(self, stream: Any, address: int, value: int) -> None:  # noqa: ANN401
        """Write a 32-bit word in stream order, by the stream's front end.

        Args:
            stream: CuPy stream.
            address: device address of the word.
            value: value of the word.
        """
        _unwrap(self.driver.cuStreamWriteValue32(stream.ptr, address, value, 0))

    def call_host(self, stream: Any, function: Callable[[object], None]) -> None:  # noqa: ANN401
        """Run a Python function in stream order.

        Args:
            stream: CuPy stream.
            function: function with one argument, which is None.
        """
        stream.launch_host_func(function, None)

    def graph(self, stream: Any, enqueue: Callable[[], None]) -> Any:  # noqa: ANN401 - a CuPy graph
        """Return a graph of the operations that a function enqueues.

        Args:
            stream: CuPy stream.
            enqueue: enqueues operations on the stream.
        """
        stream.begin_capture()
        enqueue()
        return stream.end_capture()

    def create(self, size: int) -> tuple[int, Any]:
        """Allocate physical memory, a multiple of 2 MiB; return a descriptor for its export, and its handle."""
        handle = _unwrap(self.driver.cuMemCreate(size, self._properties, 0))
        descriptor = _unwrap(self.driver.cuMemExportToShareableHandle(handle, self._handle_type, 0))
        return int(descriptor), handle

    def receive(self, descriptor: int) -> Any:  # noqa: ANN401 - a driver handle
        """Return the handle of memory that another process exported."""
        return _unwrap(self.driver.cuMemImportFromShareableHandle(descriptor, self._handle_type))

    def reserve(self, size: int) -> int:
        """Reserve device addresses without memory and return the first."""
        return int(_unwrap(self.driver.cuMemAddressReserve(size, 0, 0, 0)))

    def map(self, address: int, handle: Any, size: int) -> None:  # noqa: ANN401
        """Map physical memory, readable and writable.

        Args:
            address: start address.
            handle: handle of the physical memory.
            size: size in bytes.
        """
        _unwrap(self.driver.cuMemMap(address, size, 0, handle, 0))
        _unwrap(self.driver.cuMemSetAccess(address, size, [self._access], 1))

    def unmap(self, address: int, handle: Any, size: int) -> None:  # noqa: ANN401
        """Unmap memory and release its handle.

        Args:
            address: start address.
            handle: handle of the physical memory.
            size: size in bytes.
        """
        _unwrap(self.driver.cuMemUnmap(address, size))
        _unwrap(self.driver.cuMemRelease(handle))

    def unreserve(self, address: int, size: int) -> None:
        """Release reserved addresses.

        Args:
            address: start address.
            size: size in bytes.
        """
        _unwrap(self.driver.cuMemAddressFree(address, size))


@dataclass
class _DryStream:
    ptr: int = 0


class _DryEvent:
    def record(self, stream: object) -> None:
        """Do nothing."""


class _DryGraph:
    def launch(self, stream: object) -> None:
        """Do nothing."""


@dataclass
class DryGpu:
    """The methods of `Gpu` without a GPU: launches and copies do nothing, and all checks pass."""

    _next: int = 1 << 40
    _pinned_blocks: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_arguments: None

    def facts(self) -> dict[str, str]:
        return {"device": "none", "multiprocessors": "132", "l2_bytes": str(60 << 20)}

    def stream(self) -> _DryStream:
        return _DryStream()

    def done(self, stream: object) -> bool:
        del stream
        return True

    def allocate(self, size: int) -> int:
        self._next += size
        return self._next - size

    reserve = allocate

    def pinned(self, size: int) -> tuple[int, memoryview]:
        memory = (ctypes.c_char * size)()
        self._pinned_blocks.append(memory)
        return ctypes.addressof(memory), memoryview(memory).cast("B").cast("q")

    def register(self, address: int, size: int) -> int:
        """Return the address unchanged.

        Args:
            address: start address.
            size: unused.
        """
        del size
        return address

    def event(self) -> _DryEvent:
        return _DryEvent()

    def elapsed_us(self, start: object, stop: object) -> float:
        """Return 10.

        Args:
            start: unused.
            stop: unused.
        """
        del start, stop
        return 10.0

    def read_ints(self, address: int, count: int) -> list[int]:
        """Return zeros.

        Args:
            address: unused.
            count: number of words.
        """
        del address
        return [0] * count

    def graph(self, stream: object, enqueue: Callable[[], None]) -> _DryGraph:
        """Call `enqueue` and return a graph without effect.

        Args:
            stream: unused.
            enqueue: enqueues operations.
        """
        del stream
        enqueue()
        return _DryGraph()

    def create(self, size: int) -> tuple[int, int]:
        del size
        return os.memfd_create("dry"), 0
