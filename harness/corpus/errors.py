"""Error of modules that cannot become problems, and summaries of other errors."""

from __future__ import annotations

from harness.errors import HarnessError


class SkippedError(HarnessError):
    """A module cannot become a problem. The summary of an extraction lists the reason."""


def error_summary(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message, in at most 160 characters."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:160]
