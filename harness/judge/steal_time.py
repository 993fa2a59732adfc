"""Time that the host of a virtual machine takes: the scheduler in the machine does not see it, the kernel counts it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_STEAL = 8
"""Field of a processor's line in /proc/stat, counted from its name."""
_LINES_BYTES = 128
"""A processor's line is no longer."""


class Steal:
    """Time for which processors of this machine were wanted and not given.

    The kernel counts in ticks of 10 ms: a shorter theft is seen as seldom as it is short.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        self._bytes = _LINES_BYTES * (1 + (os.cpu_count() or 1))
        virtual = "hypervisor" in (proc / "cpuinfo").read_text().split()  # elsewhere there is nobody to take any
        self._stat = os.open(proc / "stat", os.O_RDONLY | os.O_CLOEXEC) if virtual else None
        self._libc = ctypes.CDLL(None)

    def taken_ns(self, runner_cpu: int) -> int:
        """Of a runner's processor and of the one that asks, since the machine was started."""
        if self._stat is None:
            return 0
        wanted = {b"cpu%d" % runner_cpu, b"cpu%d" % self._libc.sched_getcpu()}
        lines = (line.split() for line in os.pread(self._stat, self._bytes, 0).splitlines())
        return self._tick_ns * sum(int(line[_STEAL]) for line in lines if line[0] in wanted)

    def close(self) -> None:
        """Give the file back."""
        if self._stat is not None:
            os.close(self._stat)
