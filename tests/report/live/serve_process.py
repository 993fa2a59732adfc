"""`harness serve` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serve_process(root: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a workspace until the end of the block; yields the URL once it is printed."""
    command = [sys.executable, "-m", "harness", "serve", str(root), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = re.search(r"http\S+", process.stdout.readline())
        assert url
        yield url[0], process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
