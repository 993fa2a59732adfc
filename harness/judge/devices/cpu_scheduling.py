"""Processors and priorities of the CPU's judge: worker threads, real-time priority, waiting times, and steal time.

Steal time is the time in which the host of a virtual machine ran something else on a processor. The kernel counts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from harness.judge.isolation.process_freezer import SandboxProcesses

_MAX_WORKERS = 4
"""Threads of the judge. More would wait for the interpreter lock."""
_OWN_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_STEAL = 8
"""Index of the field `steal` in a processor's line of /proc/stat; the name has index 0. Source: proc_stat(5)."""
_LINE_BYTES = 128
"""Upper limit of the length of a processor's line."""


def processor_name() -> str:
    """Return the model name of this host's processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def worker_count(processors: Sequence[int]) -> int:
    """Return the number of threads for the judge's own work."""
    return min(len(processors), _MAX_WORKERS)


def worker_pool(processors: Sequence[int]) -> ThreadPoolExecutor | None:
    """Return threads for the judge's own work, which may use every processor; None if there is only one processor."""

    def begin() -> None:
        os.sched_setaffinity(0, set(processors))
        torch.set_num_threads(1)

    workers = worker_count(processors)
    return ThreadPoolExecutor(workers, "judge", begin) if workers > 1 else None


@contextlib.contextmanager
def real_time_priority(processes: SandboxProcesses) -> Iterator[None]:
    """Run judge and runner before every ordinary process, each on its own processor, if this process has the right."""
    processes.set_realtime(on=True)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        processes.set_realtime(on=False)


def run_delay_ns() -> int:
    """Return the nanoseconds for which this thread has waited for a processor so far."""
    return int(_OWN_SCHEDSTAT.read_bytes().split()[1])


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
