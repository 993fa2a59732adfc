"""Exceptions of a judge whose cause is a fault of this machine and not a candidate.

The judge exits with a code of its own for these, and the daemon has the candidate judged again later.
"""

from __future__ import annotations

import errno
import re

from harness.errors import HostFaultError, OutOfMachineMemoryError

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_FILES = {errno.EMFILE, errno.ENFILE}
_MEMORY = {errno.ENOMEM, errno.EAGAIN}
"""EAGAIN: the kernel refuses to start another process or thread."""
_NO_MEMORY = re.compile(r"(?i)can't allocate memory|can't start new thread|std::bad_alloc|CUDA out of memory")
"""Messages of torch's allocators, of Python's threads and of C++."""
# Source: cudaGetErrorString and cudaError in the CUDA Runtime API, and nvmlErrorString in the NVML API Reference.
_NO_DRIVER = re.compile(
    r"GPU is lost|fallen off the bus|no CUDA-capable device|driver version is insufficient|driver shutting down|"
    r"driver not loaded|driver/library version mismatch|system not yet initialized|uncorrectable (ECC|NVLink) error|"
    r"CUDA_ERROR_(NO_DEVICE|DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE|SYSTEM_NOT_READY|SYSTEM_DRIVER_MISMATCH)",
    re.IGNORECASE,
)
_END_OTHERS = "end other programs, or add memory"


def host_fault(error: BaseException) -> HostFaultError | None:
    """Return the fault of this machine that caused an exception; None if another cause did."""
    if isinstance(error, OSError) and (fault := _of_system(error)):
        return fault
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(text)):
        return OutOfMachineMemoryError(f"this machine is out of memory: {text or 'MemoryError'}", remedy=_END_OTHERS)
    if _NO_DRIVER.search(text):
        return HostFaultError(f"the GPU's driver does not work: {text}", remedy="nvidia-smi; dmesg | grep -i xid")
    return None


def _of_system(error: OSError) -> HostFaultError | None:
    """Return the fault that the errno of a failed system call identifies."""
    if error.errno in _DISK:
        where = str(error.filename) if error.filename else None
        return HostFaultError(f"the disk cannot be written: {error.strerror}", where=where, remedy="free space: df -h")
    if error.errno in _FILES:
        return HostFaultError(f"too many files are open: {error.strerror}", remedy="raise the limit: ulimit -n")
    if error.errno in _MEMORY:
        return OutOfMachineMemoryError(f"no further process or thread can start: {error.strerror}", remedy=_END_OTHERS)
    return None
