"""Output of a build: a size-limited tmpfs inside its sandbox, and memory files that carry the results out.

A build runs code that a candidate chose, so nothing of it reaches the host's disk: its directories are tmpfs of the
sandbox, and a shell copies the files that count into memory files that the judge has opened. Each is limited in size
by the sandbox's limit on files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

OUTPUT_BYTES = 256 << 20
"""Size of a build's output directory: objects of all sources, and the artefact."""


def memory_file(name: str) -> IO[bytes]:
    """Return an anonymous file in memory."""
    return os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "w+b")


def copying(command: Sequence[str], directory: str, files: Mapping[str, IO[bytes]]) -> list[str]:
    """Return a command that runs another one and then copies its results; it ends as the other one does.

    Args:
        command: the build.
        directory: where it leaves its results, as the sandbox sees it.
        files: name in that directory -> the open file that receives the content; inherited by the sandbox. A file
            that the build did not make stays empty.
    """
    copies = [
        f'test -f "{directory}/{name}" && cat "{directory}/{name}" > /proc/self/fd/{file.fileno()}'
        for name, file in files.items()
    ]
    return ["/bin/sh", "-c", "; ".join(['"$@"', "code=$?", *copies, "exit $code"]), "sh", *command]


def keep_results(files: Mapping[str, IO[bytes]], output: Path) -> None:
    """Write what memory files received to a directory on the host; empty ones are left out.

    Raises:
        OSError: the host's disk is full or cannot be written.
    """
    for name, file in files.items():
        size = os.fstat(file.fileno()).st_size
        if size:
            (output / name).write_bytes(os.pread(file.fileno(), size, 0))
