"""Error of modules that cannot become problems."""

from __future__ import annotations

from harness.errors import HarnessError


class SkippedError(HarnessError):
    """A module cannot become a problem. The summary of an extraction lists the reason."""
