"""Identity of a process by its pid and start time: the kernel gives the pid of an ended process to another later."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Return the start time of a running process in clock ticks since boot; None if no such process runs.

    A zombie does not run.

    Source: proc(5), /proc/PID/stat, fields 3 (state) and 22 (starttime).
    """
    with suppress(OSError, IndexError, ValueError):
        # Field 2 is the name in parentheses and may contain blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[19]) if fields[0] not in {"Z", "X"} else None
    return None
