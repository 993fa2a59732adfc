"""Text of agents and other processes, made safe to print.

File names, reasons and notes come from agents. Printed as they are, an escape sequence rewrites what the terminal
shows, a line break forges a line of our own, and a bidirectional override (U+202E) shows characters in another order.
"""

from __future__ import annotations

import unicodedata

_MARKDOWN = str.maketrans({"|": "\\|", "`": "\\`", "<": "&lt;", "[": "\\["})
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, formats (bidirectional, zero width), surrogates, separators of lines and paragraphs."""


def printable(text: str, *, keep_newlines: bool = False) -> str:
    r"""Return the text with each control, format and separator character escaped: `\x1b`, `\n`, `\u202e`.

    Args:
        text: any text.
        keep_newlines: let line feeds and tabs pass, for texts of several lines.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if keep_newlines else ""
    return "".join(
        character.encode("unicode_escape").decode() if _steers(character) and character not in kept else character
        for character in text
    )


def printable_json(text: str) -> str:
    r"""Return a JSON text with the same characters escaped as JSON escapes them, so that its value stays: `\u001b`."""
    if text.isprintable():
        return text
    return "".join(
        _json_escape(character) if _steers(character) and character != "\n" else character for character in text
    )


def markdown_text(text: str, *, keep_code: bool = False) -> str:
    """Return the text as one line of Markdown that opens no table cell, link, HTML tag or code span.

    Args:
        text: any text.
        keep_code: let backticks and pipes pass, for sentences of ours in a list.
    """
    line = printable(text)
    if keep_code:
        return line.replace("<", "&lt;").replace("[", "\\[")
    return line.translate(_MARKDOWN)


def _steers(character: str) -> bool:
    return unicodedata.category(character) in _ESCAPED


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
