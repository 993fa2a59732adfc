"""Output of a build: a tmpfs of limited size in its sandbox, and memory files that receive the results.

A build runs code that a candidate has chosen, so it must not write to the host's disk. Its directories are tmpfs of the
sandbox. A shell copies the results into memory files that the judge has opened, and the sandbox's limit on file sizes
limits each of them.
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
    """Return a command that runs a build, copies its results, and exits with the build's exit code.

    Args:
        command: the build.
        directory: the build's output directory in the sandbox.
        files: name in that directory -> the open file that receives the content, which the sandbox inherits. It stays
            empty if the build did not write the file.
    """
    copies = [
        f'test -f "{directory}/{name}" && cat "{directory}/{name}" > /proc/self/fd/{file.fileno()}'
        for name, file in files.items()
    ]
    return ["/bin/sh", "-c", "; ".join(['"$@"', "code=$?", *copies, "exit $code"]), "sh", *command]


def keep_results(files: Mapping[str, IO[bytes]], output: Path) -> None:
    """Write the content of memory files to a directory on the host; empty ones are omitted.

    Args:
        files: name -> memory file.
        output: the directory.

    Raises:
        OSError: the host's disk is full or cannot be written.
    """
    for name, file in files.items():
        size = os.fstat(file.fileno()).st_size
        if size:
            (output / name).write_bytes(os.pread(file.fileno(), size, 0))
