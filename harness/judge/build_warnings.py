"""Warnings in what a compiler printed: untrusted text, of which lines are kept."""

from __future__ import annotations

import re

_MOST_WARNINGS = 8
_LONGEST = 240
_SOURCES = "/sources/"
"""Where a build's sandbox shows the sources; readers know them by their own names."""
_WARNING = re.compile(r"\bwarning\b|\bperformance\b.*\bwgmma\b|setmaxnreg", re.IGNORECASE)
_ABOUT_WARNINGS = re.compile(r"^Remark:|\[-W\w+=?\]?$")


def build_warnings(messages: str) -> tuple[str, ...]:
    """Return the compiler's first warnings, each once and without control characters.

    Args:
        messages: as the compiler wrote them.
    """
    lines = messages.splitlines()
    chosen = [_printable(line) for line in lines if _WARNING.search(line) and not _ABOUT_WARNINGS.match(line)]
    unique = list(dict.fromkeys(line for line in chosen if line))
    more = [f"and {len(unique) - _MOST_WARNINGS} more warnings"] if len(unique) > _MOST_WARNINGS else []
    return (*unique[:_MOST_WARNINGS], *more)


def _printable(line: str) -> str:
    return "".join(letter for letter in line.strip() if letter.isprintable()).replace(_SOURCES, "")[:_LONGEST]
