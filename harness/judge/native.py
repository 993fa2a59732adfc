"""The judge's own few lines of C++, built once with the system compiler: cold caches, short edges, quick comparison.

Without a compiler the judge works all the same: batches start as the caches are, a handshake costs a few tenths of
a millisecond more, which calibration sees, and comparing takes several times as long.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.judge.correctness import Sums, least_scale, summed
from harness.model.problem import Tolerance

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.cpp", "compare.cpp"))
_FLAGS = ("-std=c++17", "-O3", "-fno-trapping-math", "-ffp-contract=off", "-fPIC", "-shared")
_BUILD_S = 60
_UNKNOWN, _REFUSED = 2**64 - 1, -2
"""native.cpp's UNKNOWN and REFUSED."""
_ONE_PASS = frozenset({torch.float32, torch.bfloat16})

Flush = Callable[[int, int], None]
"""(address, bytes)"""


class Process(ctypes.Structure):
    """The descriptors of one process of a sandbox."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("pidfd", "directory", "stat", "schedstat"))


@dataclass(frozen=True)
class Exchanged:
    """Result of one exchange. `data` None: nothing came in time, or `refused`; empty: the line is closed."""

    data: bytes | None
    begin_ns: int
    end_ns: int
    proved: bool
    """True if everything was stopped at `end_ns`."""
    counters: tuple[int, int]
    """Of the proof, over all threads: (processor time in ns, time slices)."""
    refused: bool = False
    """Nothing was continued: something was not stopped, or had run since its stop was proved."""


class _Found(ctypes.Structure):
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
            ctypes.c_float, ctypes.c_float, ctypes.c_float, ctypes.POINTER(_Found),
        ]  # fmt: skip
        self._library = library
        page = (ctypes.c_char * 4096)()
        self.flushes = library.flush(ctypes.addressof(page), 4096) == 0
        """True if this processor has an instruction that removes memory from its caches."""

    def flush(self, address: int, size: int) -> None:
        """Take memory out of every cache."""
        self._library.flush(address, size)

    def overwrite(self, address: int, size: int, byte: int) -> None:
        """Fill memory, from and to a multiple of 16 bytes, and leave nothing of it in a cache."""
        self._library.overwrite(address, size, byte)

    def summed(self, found: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> Sums:
        """`harness.judge.correctness.summed` in one pass over memory, for the dtypes that most outputs have."""
        if right.dtype not in _ONE_PASS:
            return summed(found, right, tolerance)
        found, right = found.contiguous(), right.contiguous()
        seen = _Found()
        self._library.compare(
            found.data_ptr(), right.data_ptr(), right.numel(), right.dtype is torch.bfloat16,
            tolerance.max_atol, tolerance.max_rtol, least_scale(tolerance), ctypes.byref(seen),
        )  # fmt: skip
        return Sums(
            seen.max_abs, seen.max_rel, seen.squared_error, seen.squares,
            within=bool(seen.within), some_nonzero=bool(seen.some_nonzero),
        )  # fmt: skip

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
        """Thaw and continue, wait for a record of `record` bytes, stop, prove it.

        Args:
            line: the socket to the runner.
            processes: of the sandbox.
            listing: its /proc, or -1.
            freezer: its open cgroup.freeze, or -1.
            spin: poll the socket, which is quicker than to wait for it.
            within_s: seconds to wait for the record.
            record: bytes of a record.
            slices: time slices at the proof of the last stop; other ones, and nothing is continued. None: not compared.
        """
        buffer = ctypes.create_string_buffer(record)
        begin, end, proved = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int()
        cpu_ns, stopped_slices = ctypes.c_uint64(), ctypes.c_uint64(_UNKNOWN if slices is None else slices)
        within = ctypes.c_int64(int(within_s * 1e9))
        got = self._library.exchange(
            line, processes, len(processes), listing, freezer, int(spin), within, buffer, ctypes.c_uint64(record),
            ctypes.byref(begin), ctypes.byref(end), ctypes.byref(proved), ctypes.byref(cpu_ns),
            ctypes.byref(stopped_slices),
        )  # fmt: skip
        data = None if got < 0 else buffer.raw[:got]
        counters = cpu_ns.value, stopped_slices.value
        return Exchanged(data, begin.value, end.value, bool(proved.value), counters, refused=got == _REFUSED)


def load_native(cache: Path) -> Native | None:
    """Build the library, or take it from the cache; None where there is no compiler."""
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
            done = subprocess.run(command, check=False, capture_output=True, timeout=_BUILD_S)
            if done.returncode:
                return None
            built.replace(artefact)
    return Native(ctypes.CDLL(str(artefact)))
