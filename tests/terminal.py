"""A command on a terminal of a given size."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.waiting import DEADLINE_S

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r")


class Terminal:
    """A running command and its output, without control sequences."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master = process, master
        self._output = b""

    @property
    def text(self) -> str:
        """Return all output so far."""
        return _CONTROL.sub("", self._output.decode(errors="replace"))

    def read_until(self, words: str, deadline_s: float = DEADLINE_S) -> str:
        """Read until the output since the last call has these words, and return that output.

        Raises:
            TimeoutError: the words were not written before the deadline or the command's end.
        """
        begin, until = len(self.text), time.monotonic() + deadline_s
        while words not in self.text[begin:]:
            if time.monotonic() > until or not self._read(1.0):
                raise TimeoutError(f"`{words}` was not shown:\n{self.text[-4000:]}")
        return self.text[begin:]

    def interrupt(self) -> int:
        """Press Ctrl-C, read to the end, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.finish()

    def finish(self) -> int:
        """Read to the end and return the exit code."""
        while self._read(DEADLINE_S):
            pass
        return self.process.wait(timeout=DEADLINE_S)

    def _read(self, within_s: float) -> bool:
        """Read the available output; return False at the end."""
        if not select.select([self._master], [], [], within_s)[0]:
            return self.process.poll() is None
        try:
            part = os.read(self._master, 65536)
        except OSError:  # Linux reports EIO when the other end is closed
            return False
        self._output += part
        return bool(part)


@contextlib.contextmanager
def on_terminal(
    directory: Path, *arguments: str, columns: int, lines: int, environment: Mapping[str, str]
) -> Iterator[Terminal]:
    """Run `harness ARGUMENTS` on a terminal of this size; kill it at the end if it still runs."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    passed = {name: value for name, value in environment.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        cwd=directory,
        env={**passed, "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=DEADLINE_S)
        os.close(master)
