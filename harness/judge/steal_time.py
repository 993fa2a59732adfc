"""Steal time of a virtual machine, during which its host ran something else on a processor. The kernel counts it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_STEAL = 8
"""Index of the field `steal` in a processor's line of /proc/stat; the name has index 0. Source: proc_stat(5)."""
_LINE_BYTES = 128
"""Upper limit of the length of a processor's line."""


class Steal:
    """Reader of the steal time of this machine's processors; 0 on a machine that is not virtual.

    The kernel counts in ticks of 10 ms. The probability that it counts a shorter interruption is proportional to
    its length.

    Args:
        proc: mount point of the proc file system.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        self._bytes = _LINE_BYTES * (1 + (os.cpu_count() or 1))
        virtual = "hypervisor" in (proc / "cpuinfo").read_text().split()  # only a virtual machine has a host
        self._stat = os.open(proc / "stat", os.O_RDONLY | os.O_CLOEXEC) if virtual else None
        self._libc = ctypes.CDLL(None)

    def taken_ns(self, runner_cpu: int) -> int:
        """Return the steal time of a runner's processor and of the caller's since the machine started, in ns."""
        if self._stat is None:
            return 0
        processors = {b"cpu%d" % runner_cpu, b"cpu%d" % self._libc.sched_getcpu()}
        lines = (line.split() for line in os.pread(self._stat, self._bytes, 0).splitlines())
        return self._tick_ns * sum(int(line[_STEAL]) for line in lines if line[0] in processors)

    def close(self) -> None:
        """Close /proc/stat."""
        if self._stat is not None:
            os.close(self._stat)
