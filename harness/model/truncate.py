"""Truncation of texts to the length of a table's cell, a log line or an answer to an agent."""

from __future__ import annotations

from harness.model.printable import printable


def shortened(text: str, longest: int) -> str:
    """Return the text, cut to `longest` characters; a text that was cut ends in `…`."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def one_line(text: str, longest: int) -> str:
    """Return the text on one line and printable, cut to `longest` characters; white space becomes single spaces."""
    return shortened(printable(" ".join(text.split())), longest)
