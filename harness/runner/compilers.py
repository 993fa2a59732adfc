"""Run in the builder's sandbox: several compilers side by side, then a linker. Standard library only.

    python -I -B compilers.py REQUEST.json

The request has `compile`, a list of commands, and `link`, one. What they say comes out in the commands' order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SAID_BYTES = 16 << 10
_AT_ONCE = 8
"""A file that includes torch's headers takes over a gigabyte."""


def run(command: list[str]) -> tuple[int, bytes]:
    """One command: its exit code, and the first of what it said."""
    with tempfile.TemporaryFile() as said:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False).returncode
        return code, os.pread(said.fileno(), _SAID_BYTES, 0)


def main(compile_all: list[list[str]], link: list[str]) -> int:
    """Carry out a request; the exit code of the first command that failed, or 0."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(os.sched_getaffinity(0)))) as pool:
        ended = list(pool.map(run, compile_all))
    if not any(code for code, _ in ended):
        ended.append(run(link))
    for _, said in ended:
        sys.stderr.buffer.write(said)
    return next((code for code, _ in ended if code), 0)


if __name__ == "__main__":
    whole = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(main(whole["compile"], whole["link"]))
