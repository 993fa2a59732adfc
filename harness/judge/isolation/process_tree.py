"""Descent of processes, read from /proc."""

from __future__ import annotations

from pathlib import Path


def is_descendant(pid: int, ancestor: int) -> bool | None:
    """Return true if a process is another one or its descendant; None if the process has ended.

    Args:
        pid: id of the process.
        ancestor: id of the other process.
    """
    current = pid
    while current not in (0, 1, ancestor):
        try:
            line = Path(f"/proc/{current}/stat").read_text()
        except OSError:
            return None
        current = int(line[line.rindex(")") + 2 :].split()[1])
    return current == ancestor
