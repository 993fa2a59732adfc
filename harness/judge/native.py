"""The judge's C++ library, built once with the system compiler: flushes, exchanges, comparisons, copies of inputs.

Without a compiler the judge works with these differences: caches are not flushed before a batch; a handshake costs a
few tenths of a millisecond more, which the calibration includes; and comparisons and new inputs take several times as
long.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.judge.correctness import Sums, least_scale, summed
from harness.model.problem import Tolerance

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.cpp", "compare.cpp", "copies.cpp"))
_FLAGS = ("-std=c++17", "-O3", "-fno-trapping-math", "-ffp-contract=off", "-fPIC", "-shared")
_BUILD_S = 60
_UNKNOWN, _REFUSED = 2**64 - 1, -2
"""native.cpp's UNKNOWN and REFUSED."""
_ONE_PASS = frozenset({torch.float32, torch.bfloat16})


class Process(ctypes.Structure):
    """The descriptors of one process of a sandbox."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("pidfd", "directory", "stat", "schedstat"))


@dataclass(frozen=True)
class Exchanged:
    """Result of one exchange."""

    data: bytes | None
    """The record; None: none arrived in time, or `refused`; empty: the channel is closed."""
    begin_ns: int
    end_ns: int
    proved: bool
    """True if every thread was stopped at `end_ns`."""
    counters: tuple[int, int]
    """Sums over all threads when the stop was proved: (processor time in ns, time slices)."""
    refused: bool = False
    """True if no process was continued, because a thread was not stopped or had run since its stop was proved."""


class _NativeSums(ctypes.Structure):
    _fields_ = (
        ("squared_error", ctypes.c_double),
        ("squares", ctypes.c_double),
        ("max_abs", ctypes.c_float),
        ("max_rel", ctypes.c_float),
        ("within", ctypes.c_int),
        ("some_nonzero", ctypes.c_int),
    )


class Native:
    """The loaded library; see native.cpp."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.flush.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        library.overwrite.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint8]
        library.exchange.restype = ctypes.c_long
        library.compare.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int,
            ctypes.c_float, ctypes.c_float, ctypes.c_float, ctypes.POINTER(_NativeSums),
        ]  # fmt: skip
        library.copy_pieces.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
        self._library = library
        page = (ctypes.c_char * 4096)()
        self.flushes = library.flush(ctypes.addressof(page), 4096) == 0
        """True if this processor has an instruction that removes memory from its caches."""

    def flush(self, address: int, size: int) -> None:
        """Remove memory from every cache.

        Args:
            address: of the first byte.
            size: in bytes.
        """
        self._library.flush(address, size)

    def overwrite(self, address: int, size: int, byte: int) -> None:
        """Fill memory with one byte value, and leave no part of it in a cache.

        Args:
            address: of the first byte, a multiple of 16.
            size: in bytes, a multiple of 16.
            byte: the value, 0 to 255.
        """
        self._library.overwrite(address, size, byte)

    def summed(self, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> Sums:
        """Return what `harness.judge.correctness.summed` returns, in one pass over memory for float32 and bfloat16.

        Args:
            actual: floats of any shape.
            expected: floats of the same shape and dtype.
            tolerance: of the workload.
        """
        if expected.dtype not in _ONE_PASS:
            return summed(actual, expected, tolerance)
        actual, expected = actual.contiguous(), expected.contiguous()
        sums = _NativeSums()
        self._library.compare(
            actual.data_ptr(), expected.data_ptr(), expected.numel(), expected.dtype is torch.bfloat16,
            tolerance.max_atol, tolerance.max_rtol, least_scale(tolerance), ctypes.byref(sums),
        )  # fmt: skip
        return Sums(
            sums.max_abs, sums.max_rel, sums.squared_error, sums.squares,
            within=bool(sums.within), some_nonzero=bool(sums.some_nonzero),
        )  # fmt: skip

    def copy(self, table: bytes, pieces: int, part: int, parts: int) -> None:
        """Make one of several equal parts of every copy of a table.

        Args:
            table: an array of `Piece` in copies.cpp.
            pieces: number of entries.
            part: number of the part, from 0.
            parts: number of parts.
        """
        self._library.copy_pieces(table, pieces, part, parts)

    def exchange(
        self,
        line: int,
        processes: ctypes.Array[Process],
        listing: int,
        freezer: int,
        *,
        spin: bool,
        within_s: float,
        record: int,
        slices: int | None = None,
    ) -> Exchanged:
        """Thaw and continue a runner's processes, wait for its record, stop the processes, and prove the stop.

        Args:
            line: descriptor of the socket to the runner.
            processes: descriptors of the sandbox's processes.
            listing: descriptor of the sandbox's /proc, or -1.
            freezer: descriptor of the control group's cgroup.freeze, or -1.
            spin: poll the socket in a busy loop, which ends sooner after the record arrives than a blocking wait.
            within_s: seconds to wait for the record.
            record: size of a record in bytes.
            slices: sum of time slices when the last stop was proved; if the sum differs now, no process is continued.
                None: not compared.
        """
        buffer = ctypes.create_string_buffer(record)
        begin, end, proved = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int()
        cpu_ns, stopped_slices = ctypes.c_uint64(), ctypes.c_uint64(_UNKNOWN if slices is None else slices)
        within = ctypes.c_int64(int(within_s * 1e9))
        record_bytes = self._library.exchange(
            line, processes, len(processes), listing, freezer, int(spin), within, buffer, ctypes.c_uint64(record),
            ctypes.byref(begin), ctypes.byref(end), ctypes.byref(proved), ctypes.byref(cpu_ns),
            ctypes.byref(stopped_slices),
        )  # fmt: skip
        data = None if record_bytes < 0 else buffer.raw[:record_bytes]
        counters = cpu_ns.value, stopped_slices.value
        return Exchanged(data, begin.value, end.value, bool(proved.value), counters, refused=record_bytes == _REFUSED)


def load_native(cache: Path) -> Native | None:
    """Return the library, built or from the cache; None if there is no compiler or it fails."""
    name = hashlib.sha256(b"".join((*(map(Path.read_bytes, _SOURCES)), *map(str.encode, _FLAGS)))).hexdigest()[:16]
    artefact = cache / "native" / f"judge-{name}.so"
    if not artefact.is_file():
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
        if compiler is None:
            return None
        artefact.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=artefact.parent) as scratch:
            built = Path(scratch) / "judge.so"
            command = [compiler, *_FLAGS, "-o", str(built), *map(str, _SOURCES)]
            compilation = subprocess.run(command, check=False, capture_output=True, timeout=_BUILD_S)
            if compilation.returncode:
                return None
            built.replace(artefact)
    return Native(ctypes.CDLL(str(artefact)))
