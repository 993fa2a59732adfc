"""Pauses judging before the disk is full: the entry of a judged candidate and git's commits still need space."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

LEAST_FREE_BYTES = 1_000_000_000
LEAST_FREE_SHARE = 0.02
"""Judging pauses when a disk has less than both of these free: the share counts on small disks."""
_ENOUGH_AGAIN = 1.5
"""Judging continues above this multiple of the limit: without it, judging would alternate at the limit."""
_LOOK_EVERY_S = 5.0


class DiskWatch:
    """Free space on the disks that a run writes to. Not thread-safe.

    Args:
        directories: directories of the spool, git's objects and the caches.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._fault: str | None = None
        self._look_at = 0.0
        self.free_bytes = 0
        """Free bytes of the fullest disk at the last check."""

    def fault(self) -> str | None:
        """Return the reason for a pause of judging, or None. The disks are checked every few seconds."""
        if time.monotonic() < self._look_at:
            return self._fault
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        fault, frees = None, []
        for directory in self._directories:
            try:
                usage = shutil.disk_usage(directory)
            except OSError:
                continue  # missing: the writer of its files reports it
            limit_bytes = min(LEAST_FREE_BYTES, LEAST_FREE_SHARE * usage.total)
            frees.append(usage.free)
            if usage.free < limit_bytes * (_ENOUGH_AGAIN if self._fault else 1.0):
                fault = (
                    f"the disk of {directory} has {usage.free / 1e6:.0f} MB free, and judging pauses below "
                    f"{limit_bytes / 1e6:.0f} MB; fix: free some space (`git gc` packs the ledger's history)"
                )
        self._fault, self.free_bytes = fault, min(frees, default=0)
        return fault
