"""Selection of the warnings in a compiler's messages, which are untrusted text."""

from __future__ import annotations

import re

_MOST_WARNINGS = 8
_LONGEST = 240
_SOURCES = "/sources/"
"""Directory of the sources in a build's sandbox. It is removed from messages."""
_WARNING = re.compile(r"\bwarning\b|\bperformance\b.*\bwgmma\b|setmaxnreg", re.IGNORECASE)
_ABOUT_WARNINGS = re.compile(r"^Remark:|\[-W\w+=?\]?$")


def build_warnings(messages: str) -> tuple[str, ...]:
    """Return the compiler's first warnings, each once and without control characters.

    Args:
        messages: of the compiler.
    """
    lines = messages.splitlines()
    chosen = [_printable(line) for line in lines if _WARNING.search(line) and not _ABOUT_WARNINGS.match(line)]
    unique = list(dict.fromkeys(line for line in chosen if line))
    omitted = [f"and {len(unique) - _MOST_WARNINGS} more warnings"] if len(unique) > _MOST_WARNINGS else []
    return (*unique[:_MOST_WARNINGS], *omitted)


def _printable(line: str) -> str:
    return "".join(letter for letter in line.strip() if letter.isprintable()).replace(_SOURCES, "")[:_LONGEST]
