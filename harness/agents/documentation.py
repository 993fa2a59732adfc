"""The documentation pack: Markdown files that agents read without the web, and a search over their sections."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PACK = Path(__file__).parent / "docs"
_HEADING = re.compile(r"^#{1,3} ", re.MULTILINE)
_WORD = re.compile(r"[a-z0-9_.]{2,}")
_LONGEST = 6000
_SHOWN = 2


@dataclass(frozen=True)
class DocumentationSection:
    """One heading and what stands below it."""

    file: str
    title: str
    text: str


def sections(directory: Path = PACK) -> list[DocumentationSection]:
    """Every section of the pack, in the order of its files."""
    found = []
    for file in sorted(directory.glob("*.md")):
        text = file.read_text(encoding="utf-8")
        starts = [match.start() for match in _HEADING.finditer(_without_code(text))]
        for begin, end in zip(starts, [*starts[1:], len(text)], strict=True):
            body = text[begin:end].strip()
            found.append(DocumentationSection(file.name, body.partition("\n")[0].lstrip("# "), body))
    return found


def search(query: str, directory: Path = PACK) -> str:
    """The sections nearest to some words; without words, or when none fits, the table of contents."""
    every = sections(directory)
    words = set(_WORD.findall(query.lower()))
    counts = [Counter(_WORD.findall(f"{each.title} {each.title} {each.title} {each.text}".lower())) for each in every]
    spread = {word: math.log(1 + len(every) / (1 + sum(word in count for count in counts))) for word in words}
    scores = [
        sum(spread[word] * count[word] / (count[word] + 1 + len(each.text) / 4000) for word in words)
        for each, count in zip(every, counts, strict=True)
    ]
    best = sorted(zip(scores, range(len(every)), strict=True), key=lambda pair: (-pair[0], pair[1]))[:_SHOWN]
    hits = [every[number] for score, number in best if score > 0]
    if not hits:
        return contents(directory)
    return "\n\n".join(f"[docs/{hit.file}]\n{_cut(hit.text)}" for hit in hits)


def contents(directory: Path = PACK) -> str:
    """The titles, by file."""
    by_file: dict[str, list[str]] = {}
    for each in sections(directory):
        by_file.setdefault(each.file, []).append(each.title)
    return "\n".join(f"docs/{file}: {'; '.join(titles)}" for file, titles in by_file.items())


def _without_code(text: str) -> str:
    """The text with the lines of code blocks blanked, byte for byte as long: a `#` there is no heading."""
    lines, inside = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        lines.append(" " * len(line) if inside or fence else line)
        inside = inside != fence
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… (the rest is in the file)"
