"""The kernel's counters of this machine's memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def oom_kills() -> int:
    """Processes that the kernel has killed since boot because memory was short; 0 where it has no such counter."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
