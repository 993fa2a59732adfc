"""The judge's own few lines of C++, built once with the system compiler: flushing memory out of every cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_SOURCE = Path(__file__).with_name("native.cpp")
_BUILD_S = 60

Flush = Callable[[int, int], None]
"""(address, bytes)"""


def load_flush(cache: Path) -> Flush | None:
    """The flush, or None where there is no compiler or no such instruction: batches then start as the caches are."""
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
    library = ctypes.CDLL(str(artefact))
    library.flush.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    page = (ctypes.c_char * 4096)()
    if library.flush(ctypes.addressof(page), 4096):
        return None

    def flush(address: int, size: int) -> None:
        library.flush(address, size)

    return flush
