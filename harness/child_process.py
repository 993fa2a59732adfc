"""One child process of `harness start`: started, watched, and restarted after an unexpected end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EXIT_INTERNAL_ERROR
from harness.workspace.crash_report import crash_report_of
from harness.workspace.directories import Workspace
from harness.workspace.log_files import limit_size, tail
from harness.workspace.processes import PARENT_VARIABLE

_SOON_S = 20.0
"""A process that ends within this time of its start counts as one more crash in a row."""
_LAST_LINES = 3
_LAST_BYTES = 8000
_SIGNALS = {number.value: number.name for number in signal.Signals}


@dataclass
class ChildProcess:
    """A process by name, with the number of its crashes."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    consecutive_crashes: int = 0
    crashes: int = 0
    restart_at: float = 0.0
    """Monotonic time in seconds of the next start; 0 while it runs."""
    _workspace: Workspace | None = None
    _output: Path = Path()
    _output_from: int = 0
    """Offset of the present process' output in the file, which also holds that of earlier processes."""
    _started_at: float = 0.0

    def start(self, workspace: Workspace) -> None:
        """Start the process; its stdout and stderr are appended to `.harness/logs/<name>.out`."""
        self._workspace, self._output = workspace, output_file(workspace, self.name)
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as output:
            self._output_from = output.tell()
            self.process = subprocess.Popen(
                self.command,
                cwd=workspace.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,  # Ctrl-C reaches the supervisor only, which ends its children in order
            )
        self._started_at, self.restart_at = time.monotonic(), 0.0

    @property
    def is_alive(self) -> bool:
        """True if the process was started and runs."""
        return self.process is not None and self.process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self.is_alive and self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def limit_output(self) -> None:
        """Rotate the file with the output if it is too large."""
        if limit_size(self._output):
            self._output_from = 0

    def count_crash(self) -> None:
        """Count an unexpected end of the process."""
        is_early = time.monotonic() - self._started_at < _SOON_S
        self.consecutive_crashes = self.consecutive_crashes + 1 if is_early else 1
        self.crashes += 1

    def cause_of_end(self) -> str:
        """Return the signal or exit code of the ended process; for an internal error, also its crash report."""
        code = self.process.returncode if self.process is not None else None
        if code is None:
            return "no exit code"
        if code < 0:
            return _SIGNALS.get(-code, f"signal {-code}")
        if code != EXIT_INTERNAL_ERROR or self.process is None or self._workspace is None:
            return f"exit code {code}"
        report = crash_report_of(self._workspace, self.process.pid)
        return f"exit code {code}, internal error" + (f"; crash report: {report}" if report else "")

    def last_output(self) -> str:
        """Return the last lines that the present process wrote."""
        return "\n  ".join(self._tail().strip().splitlines()[-_LAST_LINES:]) or "it wrote no message"

    def _tail(self) -> str:
        return tail(self._output, self._output_from, _LAST_BYTES)


def output_file(workspace: Workspace, name: str) -> Path:
    """Return the file with the stdout and stderr of a child process.

    Args:
        name: the child process; `start` is a detached `harness start` itself.
    """
    return workspace.logs / f"{name}.out"
