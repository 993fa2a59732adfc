"""Processes that keep the timing cores busy between batches, so that the cores do not enter a sleep state.

A core that is idle for the milliseconds between two batches is slow for several calls afterwards: its clock frequency
is low, and on a virtual machine the hypervisor has assigned it to another guest. A kernel of 18 us launched from C++
took 30 to 79 us by the runner's own clock, and 29 to 36 us with both cores kept busy (docs/clock.md).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

_LIFETIME_S = 60
"""A loop ends by itself after this time, so that no loop remains after the judge has ended."""
_LOOP = f"import time\nend = time.monotonic() + {_LIFETIME_S}\nwhile time.monotonic() < end: pass"


class BusyCores:
    """One busy loop of the lowest priority for each processor.

    Args:
        processors: numbers of the processors.
    """

    def __init__(self, processors: Iterable[int]) -> None:
        self._processors = sorted(processors)
        self._loops: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Start the loops that do not run."""
        if self._loops and all(loop.poll() is None for loop in self._loops):
            return
        self.end()
        for processor in self._processors:
            loop = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LOOP], stdin=subprocess.DEVNULL, start_new_session=True
            )
            os.sched_setscheduler(loop.pid, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(loop.pid, {processor})
            self._loops.append(loop)

    def pause(self) -> None:
        """Stop the loops for a timing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the paused loops."""
        self._send(signal.SIGCONT)

    def end(self) -> None:
        """End all loops."""
        for loop in self._loops:
            loop.kill()
            loop.wait()
        self._loops.clear()

    def _send(self, number: signal.Signals) -> None:
        for loop in self._loops:
            with contextlib.suppress(ProcessLookupError):
                loop.send_signal(number)
