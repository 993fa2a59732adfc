"""Run several compilers at the same time, then a linker, in the sandbox of a build. Standard library only.

    python -I -B compilers.py REQUEST.json

The request has `compile`, a list of commands, and `link`, one command. Their output is written in this order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_OUTPUT_BYTES = 16 << 10
_PARALLEL_COMPILERS = 8
"""A compilation that includes torch's headers uses over a gigabyte of memory."""


def run(command: list[str]) -> tuple[int, bytes]:
    """Run a command and return its exit code and the first 16 KiB of its output."""
    with tempfile.TemporaryFile() as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
        return code, os.pread(output.fileno(), _OUTPUT_BYTES, 0)


def main(compile_all: list[list[str]], link: list[str]) -> int:
    """Compile, then link if each compilation succeeded.

    Args:
        compile_all: commands that run at the same time.
        link: command that runs after them.

    Returns:
        Exit code of the first command that failed, or 0.
    """
    with ThreadPoolExecutor(min(_PARALLEL_COMPILERS, len(os.sched_getaffinity(0)))) as pool:
        results = list(pool.map(run, compile_all))
    if not any(code for code, _ in results):
        results.append(run(link))
    for _, output in results:
        sys.stderr.buffer.write(output)
    return next((code for code, _ in results if code), 0)


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(main(request["compile"], request["link"]))
