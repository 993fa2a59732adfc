"""The judge's own few lines of C++, built once with the system compiler: cold caches, and a clock with short edges.

Without a compiler the judge works all the same: batches start as the caches are, and a handshake costs a few tenths of
a millisecond more, which calibration sees.
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

_SOURCE = Path(__file__).with_name("native.cpp")
_BUILD_S = 60

Flush = Callable[[int, int], None]
"""(address, bytes)"""


class Process(ctypes.Structure):
    """The descriptors of one process of a sandbox."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("pidfd", "directory", "stat", "schedstat"))


@dataclass(frozen=True)
class Exchanged:
    """What one exchange saw. `data` None: nothing came in time; empty: the line is closed."""

    data: bytes | None
    begin_ns: int
    end_ns: int
    proved: bool
    """Whether everything was stopped at `end_ns`."""


class Native:
    """The loaded library; see native.cpp."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.flush.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        library.exchange.restype = ctypes.c_long
        self._library = library
        page = (ctypes.c_char * 4096)()
        self.flushes = library.flush(ctypes.addressof(page), 4096) == 0
        """Whether this processor can be told to forget memory."""

    def flush(self, address: int, size: int) -> None:
        """Take memory out of every cache."""
        self._library.flush(address, size)

    def exchange(
        self, line: int, processes: ctypes.Array[Process], listing: int, *, spin: bool, within_s: float, record: int
    ) -> Exchanged:
        """Continue, wait for a record of `record` bytes, stop, prove it."""
        buffer = ctypes.create_string_buffer(record)
        begin, end, proved = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int()
        within = ctypes.c_int64(int(within_s * 1e9))
        got = self._library.exchange(
            line, processes, len(processes), listing, int(spin), within, buffer, ctypes.c_uint64(record),
            ctypes.byref(begin), ctypes.byref(end), ctypes.byref(proved),
        )  # fmt: skip
        return Exchanged(None if got < 0 else buffer.raw[:got], begin.value, end.value, bool(proved.value))


def load_native(cache: Path) -> Native | None:
    """Build the library, or take it from the cache; None where there is no compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        return None
    name = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    artefact = cache / "native" / f"judge-{name}.so"
    if not artefact.is_file():
        artefact.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=artefact.parent) as scratch:
            built = Path(scratch) / "judge.so"
            command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-o", str(built), str(_SOURCE)]
            done = subprocess.run(command, check=False, capture_output=True, timeout=_BUILD_S)
            if done.returncode:
                return None
            built.replace(artefact)
    return Native(ctypes.CDLL(str(artefact)))
