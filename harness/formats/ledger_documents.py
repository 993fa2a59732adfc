"""Ledger files as bytes: a head line with a format version, then YAML documents that are only ever appended.

Each document has a format version of its own (`ledger_versions`), since an upgrade never rewrites what is written.
The writer is ours because the bytes are hashed and because YAML 1.1 (PyYAML) and YAML 1.2 readers must see the same
values: every string is double-quoted, every float has a dot and a signed exponent. The reader is PyYAML's C loader.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from harness.errors import FormatError, LedgerError
from harness.formats.bounded import LEDGER_BYTES, load_yaml
from harness.formats.ledger_versions import check_format, in_newest_format, written_format
from harness.model.entry import LEDGER_FORMAT, Entry, EntryDraft
from harness.model.paths import LEDGER

_HEAD = re.compile(rb"# kernel-harness ledger, format (\d{1,9})\n")
_DOCUMENT = re.compile(rb"^---\n", re.MULTILINE)
_FIELDS = {
    "format": re.compile(rb"^format: (\d{1,9})$", re.MULTILINE),
    "seq": re.compile(rb"^seq: (\d{1,12})$", re.MULTILINE),
    "prev": re.compile(rb'^prev: (?:null|"([^"\n]*)")$', re.MULTILINE),
    "at": re.compile(rb'^at: "([^"\n]*)"$', re.MULTILINE),
}
_WIDTH = 118
_RESTORE = f"`git log -p -- {LEDGER}` shows who changed it; restore it from there"
_LONGEST_KEY = 256
"""YAML readers may refuse longer ones."""

# What YAML lets stand in a double-quoted string, less the quote, the backslash, and what editors cannot show.
_UNSAFE = re.compile("[^ !#-\\[\\]-~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Plain keys that YAML 1.1 would read as booleans or null.
_RESERVED = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass(frozen=True)
class Document:
    """One document of a ledger file: where it starts, its exact bytes, and their hash."""

    start: int
    raw: bytes

    @property
    def hash(self) -> str:
        """What the next document's `prev` must be."""
        return hash_of(self.raw)

    @property
    def seq(self) -> int:
        """Its place in its file; 0 where it does not say."""
        return int(field_of(self.raw, "seq") or 0)

    @property
    def format(self) -> int:
        """The format that it was written in: documents of format 1 do not name theirs."""
        return int(field_of(self.raw, "format") or 1)


def header(version: int) -> bytes:
    """Return the head line of a file that is begun in a ledger of this format. Upgrades leave it as it is."""
    return b"# kernel-harness ledger, format %d\n" % version


HEADER = header(LEDGER_FORMAT)
"""The head line of a file that is begun in a new ledger."""


def field_of(raw: bytes, name: Literal["format", "seq", "prev", "at"]) -> str | None:
    """`format`, `seq`, `prev` or `at` of a document, without parsing it: each is on a line of its own."""
    match = _FIELDS[name].search(raw)
    return None if match is None or match[1] is None else match[1].decode(errors="replace")


def hash_of(raw: bytes) -> str:
    """`sha256:…` of a document's exact bytes, from its `---` line to before the next one."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def render(document: Mapping[str, Any]) -> bytes:
    """A document's bytes: one top-level key a line, lists of mappings as one flow row each.

    Raises:
        LedgerError: a value YAML has no word for.
    """
    lines = ["---"]
    for key, value in document.items():
        name = _key(key)
        if isinstance(value, Sequence) and value and all(isinstance(row, Mapping) for row in value):
            lines.append(f"{name}:")
            lines += [_wrap("- ", _flow(row)) for row in value]
        else:
            lines.append(_wrap(f"{name}: ", _flow(value)))
    return ("\n".join(lines) + "\n").encode()


def render_entry(entry: Entry) -> bytes:
    """Return an entry's bytes in the entry's own format.

    What does not apply is left out; `reason` stands wherever a verdict does.

    Raises:
        LedgerError: the format cannot record the entry.
    """
    fields = entry.model_dump(mode="json", exclude_none=True)
    if entry.verdict is not None:
        fields["reason"] = entry.reason
    middle = [name for name in EntryDraft.model_fields if name in fields and fields[name] not in ([], {})]
    document = {"seq": entry.seq, "prev": entry.prev, **{name: fields[name] for name in middle}, "at": entry.at}
    return render(written_format(document, entry.format))


def split(content: bytes, where: str, *, start: int = 0) -> list[Document]:
    """The documents of a ledger file.

    Args:
        content: the whole file; empty means no documents.
        where: the file, for messages.
        start: leave out what stands before this byte, where a document begins.

    Raises:
        LedgerError: the file has no version line, or one of a version this harness does not read.
    """
    if not content:
        return []
    check_header(content, where)
    starts = [match.start() for match in _DOCUMENT.finditer(content, start)]
    ends = [*starts[1:], len(content)] if starts else []
    return [Document(start, content[start:end]) for start, end in zip(starts, ends, strict=True)]


def check_header(content: bytes, where: str) -> int:
    """Return the format in a ledger file's head line: that of the ledger when the file was begun.

    Raises:
        LedgerError: the file is not a ledger file, or is of a newer format.
    """
    head = _HEAD.match(content)
    if head is None:
        raise LedgerError(
            f"not a ledger file: its first line must be `{HEADER.decode().strip()}`",
            where=f"{where}:1",
            remedy=f"see who changed it with `git log -p -- {where}`, and restore it from there",
        )
    return check_format(int(head[1]), "the ledger file", f"{where}:1")


def parse(raw: bytes, where: str) -> dict[str, Any]:
    """Return a document as a mapping with the fields of the format that it was written in.

    Raises:
        LedgerError: it is not YAML, not a mapping with a whole-number `seq`, or of a newer format.
    """
    try:
        document = load_yaml(raw, where=where, max_bytes=LEDGER_BYTES)
    except FormatError as error:
        raise LedgerError(error.message, where=where, remedy=_RESTORE) from error
    if not isinstance(document, dict) or type(document.get("seq")) is not int:
        raise LedgerError("not a ledger document: it must be a mapping with a whole number `seq`", where=where)
    check_format(document.get("format", 1), "the document", where)
    return document


def parse_entry(raw: bytes, where: str) -> Entry:
    """Return a document of any readable format as an entry, which has the newest format's fields.

    Raises:
        LedgerError: it is not one; the message names each field.
    """
    try:
        return Entry.model_validate(in_newest_format(parse(raw, where), where))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'entry'}: {fault['msg']}" for fault in error.errors())
        raise LedgerError(f"not a ledger entry: {faults}", where=where) from error


def _flow(value: object) -> list[str]:
    """A value in flow style, as pieces between which a line may end."""
    if isinstance(value, Mapping):
        return _bracket("{", [_keyed(key, item) for key, item in value.items()], "}")
    if isinstance(value, list | tuple):
        return _bracket("[", [_flow(item) for item in value], "]")
    return [_scalar(value)]


def _keyed(key: object, value: object) -> list[str]:
    pieces = _flow(value)
    return [f"{_key(key)}: {pieces[0]}", *pieces[1:]]


def _bracket(opening: str, items: list[list[str]], closing: str) -> list[str]:
    if not items:
        return [opening + closing]
    for item in items[:-1]:
        item[-1] += ","
    items[0][0] = opening + items[0][0]
    items[-1][-1] += closing
    return [piece for item in items for piece in item]


def _wrap(lead: str, pieces: list[str]) -> str:
    """Pieces filled into lines; lines after the first are indented, as block context wants."""
    lines = [lead + pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) < _WIDTH:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"   {piece}")
    return "\n".join(lines)


def _key(key: object) -> str:
    if not isinstance(key, str) or len(key) > _LONGEST_KEY:
        raise LedgerError(f"a ledger document's keys are strings of at most {_LONGEST_KEY} characters: {key!r:.300}")
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _RESERVED else _quoted(key)


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(str(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(float(value))
    raise LedgerError(f"a ledger document holds plain values only, not {type(value).__name__}")


def _float(value: float) -> str:
    """Python's shortest form that reads back exactly, with the dot that YAML 1.1 wants: 1e-05 -> 1.0e-05."""
    if value != value:  # noqa: PLR0124 - not a number
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    mantissa, exponent, power = repr(value).partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{exponent}{power}"


def _quoted(text: str) -> str:
    return f'"{_UNSAFE.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"  # half a character, from a file name or a process' output: UTF-8 has no form for it
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}"
