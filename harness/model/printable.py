"""Escaping of texts from agents and other processes, which makes them safe to print, and truncation of long ones.

File names, reasons and notes come from agents. Without escaping, an escape sequence changes what the terminal shows, a
line break forges a line of the harness, and a bidirectional override (U+202E) reorders the characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_MARKDOWN = str.maketrans({"|": "\\|", "`": "\\`", "<": "&lt;", "[": "\\["})
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, formats (bidirectional, zero width), surrogates, separators of lines and paragraphs."""


def printable(text: str, *, keep_newlines: bool = False) -> str:
    r"""Return the text with each control, format and separator character escaped: `\x1b`, `\n`, `\u202e`.

    Args:
        keep_newlines: do not escape line feeds and tabs, for texts of several lines.
    """
    if text.isprintable():
        return text
    unescaped = "\n\t" if keep_newlines else ""
    return "".join(
        character
        if character in unescaped or not _is_control(character)
        else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_json(text: str) -> str:
    r"""Return a JSON text with the same value in which these characters, except line feeds, are escaped: `\u001b`."""
    if text.isprintable():
        return text
    return "".join(
        _json_escape(character) if _is_control(character) and character != "\n" else character for character in text
    )


def markdown_text(text: str, *, keep_code: bool = False) -> str:
    """Return the text as one line of Markdown that opens no table cell, link, HTML tag or code span.

    Args:
        keep_code: do not escape backticks and pipes, for sentences of the harness in a list.
    """
    line = printable(text)
    if keep_code:
        return line.replace("<", "&lt;").replace("[", "\\[")
    return line.translate(_MARKDOWN)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _ESCAPED


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def shortened(text: str, max_length: int) -> str:
    """Return the text, cut to `max_length` characters; a text that was cut ends in `…`.

    Args:
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


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as `2 problems`.

    Args:
        number: selects the singular or the plural.
        noun: in the singular.
        plural: None if it is the singular with an `s`.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def interval_of(ends: Sequence[float] | None) -> str:
    """Return the ends of an interval, `1.360 to 1.402`; `-` without one."""
    return "{:.3f} to {:.3f}".format(*ends) if ends else "-"


def amount_of(amount: float, unit: str) -> str:
    """Return an amount with its unit and with commas, such as `20,000,000 tokens`, `1 minute` or `2.5 USD`.

    Args:
        amount: is not rounded.
        unit: in the singular; in capitals, its plural is the same.
    """
    return f"{amount:,.15g} {unit if amount == 1 or unit.isupper() else f'{unit}s'}"


def first_names(names: Sequence[str], max_names: int) -> str:
    """Return the first names with commas, and the number of the others: `a, b and 3 more`."""
    return ", ".join(names[:max_names]) + (f" and {len(names) - max_names} more" if len(names) > max_names else "")
