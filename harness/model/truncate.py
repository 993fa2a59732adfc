"""Texts of others in the room there is for them: a table's cell, a log's line, an agent's answer."""

from __future__ import annotations

from harness.model.printable import printable


def shortened(text: str, longest: int) -> str:
    """The text in `longest` characters at most; one that is cut ends in `…`."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def one_line(text: str, longest: int) -> str:
    """The same on one line and printable: white space of every kind becomes single spaces."""
    return shortened(printable(" ".join(text.split())), longest)
