"""Truncation of texts to the length of a table's cell, a log line or an answer to an agent."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.printable import printable


def shortened(text: str, max_length: int) -> str:
    """Return the text, cut to `max_length` characters; a text that was cut ends in `…`.

    Args:
        text: any text.
        max_length: upper bound of the characters, including `…`.
    """
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def one_line(text: str, max_length: int) -> str:
    """Return the text on one line, printable and cut.

    Args:
        text: any text; white space becomes single spaces, and control characters are escaped.
        max_length: upper bound of the characters of the result.
    """
    return shortened(printable(" ".join(text.split())), max_length)


def first_names(names: Sequence[str], max_names: int) -> str:
    """Return the first names with commas, and the number of the others: `a, b and 3 more`.

    Args:
        names: all names.
        max_names: number of names that are shown.
    """
    return ", ".join(names[:max_names]) + (f" and {len(names) - max_names} more" if len(names) > max_names else "")
