"""The documentation pack: Markdown pages that agents read without the web, and a ranked search over their sections.

The search is SQLite's FTS5 with bm25 over the terms that `index_terms` derives from the text. FTS5's own tokenizers
either split `cp.async.bulk.tensor` and `__shfl_xor_sync` or keep them whole; `index_terms` returns the whole word and
its parts.

Source: https://www.sqlite.org/fts5.html (bm25, porter and unicode61 tokenizers).
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.model.printable import shortened

PACK = Path(__file__).parent / "docs"
_HEADING = re.compile(r"#{1,3} ")
_ALIASES = re.compile(r"^Also: (.*)$", re.MULTILINE)
_COMPOUND = re.compile(r"[a-z0-9_]+(?:(?:\.|::|-)[a-z0-9_]+)*", re.IGNORECASE)
_SEPARATOR = re.compile(r"[.:_-]+")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SHAPE = re.compile(r"m\d+n\d+k\d+")
_BRITISH = re.compile(r"is(e|ed|es|er|ing|ation|ations)$")
_STOP_WORDS = frozenset(
    """
    a an and are as at be by can do does for from how i if in into is it its my of on or than that the this to use using
    vs what when which why with
    """.split()  # noqa: SIM905 - a list of words reads better than a list of literals
)
_WEIGHTS = (8.0, 5.0, 5.0, 1.0)
"""Of title, page, aliases and body."""
_RESULTS = 6
_SHOWN_WHOLE = 2
_LONGEST_SECTION = 6000
_LONGEST_SNIPPET = 140


@dataclass(frozen=True)
class DocumentationSection:
    """One heading of a page and the text below it; a page's first heading is the page's title."""

    file: str
    page: str
    title: str
    text: str

    @property
    def path(self) -> str:
        """File and headings, such as `docs/25_wgmma.md > wgmma > Descriptors`."""
        return " > ".join([f"docs/{self.file}", *dict.fromkeys((self.page, self.title))])

    @property
    def aliases(self) -> str:
        """Other names of the section's subject: its line that begins with `Also:`."""
        return " ".join(_ALIASES.findall(self.text))


def sections() -> list[DocumentationSection]:
    """Return every section of the pack, in the order of its files."""
    result = []
    for file in sorted(PACK.glob("*.md")):
        parts: list[list[str]] = []
        inside_code = False
        for line in file.read_text(encoding="utf-8").split("\n"):
            if line.lstrip().startswith("```"):
                inside_code = not inside_code
            if _HEADING.match(line) and not inside_code:
                parts.append([])
            if parts:
                parts[-1].append(line)
        titles = [lines[0].lstrip("# ") for lines in parts]
        for title, lines in zip(titles, parts, strict=True):
            result.append(DocumentationSection(file.name, titles[0], title, "\n".join(lines).strip()))
    return result


def index_terms(text: str) -> list[str]:
    """Return the search terms of a text, in lower case: each word whole, its dotted prefixes and its parts.

    The terms of `cp.async.bulk` are the word itself, `cp.async`, `cp`, `async` and `bulk`. `SmemAllocator` adds `smem`
    and `allocator`; `m16n8k16` adds `m16`, `n8` and `k16`; `stream-K` adds `streamk` and `stream`.
    """
    terms: list[str] = []
    for word in _COMPOUND.findall(text):
        whole = word.strip("_")
        pieces = [piece for piece in _SEPARATOR.split(whole) if piece]
        variants = [whole]
        if len(pieces) > 1:
            variants += ["".join(pieces), *pieces]
            dotted = whole.split(".")
            variants += [".".join(dotted[:count]) for count in range(2, len(dotted))]
        for piece in pieces:
            if _SHAPE.fullmatch(piece):
                variants += re.findall(r"[mnk]\d+", piece)
            elif not piece.islower() and len(parts := _CAMEL.findall(piece)) > 1:
                variants += parts
        terms += dict.fromkeys(_normalized(variant) for variant in variants)
    return [term for term in terms if len(term) > 1 and term not in _STOP_WORDS]


def matching_sections(query: str, limit: int = _RESULTS) -> list[DocumentationSection]:
    """Return the sections that match any word of the query, best first.

    Args:
        limit: the largest number of sections.
    """
    terms = list(dict.fromkeys(index_terms(query)))
    if not terms:
        return []
    all_sections, index = _index()
    rows = index.execute(
        "SELECT rowid FROM section WHERE section MATCH ? ORDER BY bm25(section, ?, ?, ?, ?), rowid LIMIT ?",
        (" OR ".join(f'"{term}"' for term in terms), *_WEIGHTS, limit),
    )
    return [all_sections[number] for (number,) in rows]


def search(query: str) -> str:
    """Return the two best sections in full and a line for each of the next; the table of contents without a match."""
    hits = matching_sections(query)
    if not hits:
        return contents()
    terms = set(index_terms(query))
    whole = [f"[{hit.path}] {_size(hit)}\n{_cut(hit.text)}" for hit in hits[:_SHOWN_WHOLE]]
    related = [f"- [{hit.path}] {_size(hit)}: {_snippet(hit, terms)}" for hit in hits[_SHOWN_WHOLE:]]
    return "\n\n".join(whole + (["Also related:\n" + "\n".join(related)] if related else []))


def contents() -> str:
    """Return the titles of the sections, one line per file."""
    by_file: dict[str, list[str]] = {}
    for section in sections():
        by_file.setdefault(section.file, []).append(section.title)
    return "\n".join(f"docs/{file}: {'; '.join(titles)}" for file, titles in by_file.items())


@cache
def _index() -> tuple[list[DocumentationSection], sqlite3.Connection]:
    """Return the sections and their index in memory; the pack does not change while a process runs."""
    all_sections = sections()
    # Tools of several sessions may run in different threads; SQLite serializes the calls of one connection.
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute(
        "CREATE VIRTUAL TABLE section USING fts5(title, page, aliases, body, content='',"
        " tokenize=\"porter unicode61 tokenchars '._:-'\")"
    )
    index.executemany(
        "INSERT INTO section(rowid, title, page, aliases, body) VALUES (?, ?, ?, ?, ?)",
        (
            (number, *(" ".join(index_terms(text)) for text in (hit.title, hit.page, hit.aliases, hit.text)))
            for number, hit in enumerate(all_sections)
        ),
    )
    return all_sections, index


def _normalized(word: str) -> str:
    """Return a word in lower case and American spelling: `quantisation` and `quantization` are one term."""
    return _BRITISH.sub(r"iz\1", word.lower().strip("_"))


def _snippet(section: DocumentationSection, terms: set[str]) -> str:
    """Return the line of a section with the most terms of the query."""
    lines = [line.strip() for line in section.text.split("\n")[1:] if line.strip() and not line.startswith("```")]
    best = max(lines, key=lambda line: len(terms.intersection(index_terms(line))), default="")
    return shortened(best, _LONGEST_SNIPPET)


def _size(section: DocumentationSection) -> str:
    return f"({len(section.text.encode()) / 1000:.1f} kB)"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SECTION else f"{text[:_LONGEST_SECTION]}\n… (the rest is in the file)"
