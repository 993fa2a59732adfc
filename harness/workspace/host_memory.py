"""Counters of this machine's memory, as the kernel reports them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed since boot for lack of memory; 0 without that counter.

    Source: /proc/vmstat, `oom_kill`.
    """
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
