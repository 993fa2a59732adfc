"""Processors and priorities of the CPU's judge: worker threads, real-time priority, and waiting times."""

from __future__ import annotations

import contextlib
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


def processor_name() -> str:
    """Return the model name of this host's processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def worker_pool(processors: Sequence[int]) -> ThreadPoolExecutor | None:
    """Return threads for the judge's own work, which may use every processor; None if there is only one processor."""

    def begin() -> None:
        os.sched_setaffinity(0, set(processors))
        torch.set_num_threads(1)

    workers = min(len(processors), _MAX_WORKERS)
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
