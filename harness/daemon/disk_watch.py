"""Pauses judging before the disk is full: what is being judged must still be entered, and git must still commit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

LEAST_FREE_BYTES = 1_000_000_000
LEAST_FREE_SHARE = 0.02
"""Judging pauses when a disk has less than both of these free: the share counts on small disks."""
_ENOUGH_AGAIN = 1.5
"""It goes on at so many times that: near the limit it would stop and go."""
_LOOK_EVERY_S = 5.0


class DiskWatch:
    """Free space on the disks that a run writes to. One thread.

    Args:
        directories: where the spool, git's objects and the caches are.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._fault: str | None = None
        self._look_at = 0.0
        self.free_bytes = 0
        """On the fullest of the disks, when it was looked at last."""

    def fault(self) -> str | None:
        """Return why nothing more should be judged now; None while there is space. Looks every few seconds."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_EVERY_S
            self._look()
        return self._fault

    def _look(self) -> None:
        fault, frees = None, []
        for directory in self._directories:
            try:
                usage = shutil.disk_usage(directory)
            except OSError:
                continue  # not made yet, or gone: who writes there says so
            least = min(LEAST_FREE_BYTES, LEAST_FREE_SHARE * usage.total)
            frees.append(usage.free)
            if usage.free < least * (_ENOUGH_AGAIN if self._fault else 1.0):
                fault = (
                    f"the disk of {directory} has {usage.free / 1e6:.0f} MB free, and judging pauses below "
                    f"{least / 1e6:.0f} MB; fix: free some space (`git gc` packs the ledger's history)"
                )
        self._fault, self.free_bytes = fault, min(frees, default=0)
