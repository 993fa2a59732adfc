"""Ledger files as bytes: a first line with a format version, then YAML documents, which are only appended.

The module has its own YAML writer, because the bytes are hashed and because readers of YAML 1.1 (PyYAML) and YAML 1.2
must get the same values. It quotes every string with double quotes, and writes every float with a dot and a signed
exponent. The reader is PyYAML's C loader.
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
from harness.model.entry import LEDGER_FORMAT, Entry, EntryDraft
from harness.model.paths import LEDGER

_HEAD = re.compile(rb"# kernel-harness ledger, format (\d{1,9})\n")
_DOCUMENT = b"---\n"
_FIELDS = {
    "format": re.compile(rb"^format: (\d{1,9})$", re.MULTILINE),
    "seq": re.compile(rb"^seq: (\d{1,12})$", re.MULTILINE),
    "prev": re.compile(rb'^prev: (?:null|"([^"\n]*)")$', re.MULTILINE),
    "at": re.compile(rb'^at: "([^"\n]*)"$', re.MULTILINE),
}
_WIDTH = 118
_RESTORE = f"`git log -p -- {LEDGER}` shows who changed it; restore it from there"
_LONGEST_KEY = 256
"""Maximum characters of a key; YAML readers may refuse longer ones."""

# All characters except those that YAML allows unescaped in a double-quoted string and that editors can show.
_UNSAFE = re.compile("[^ !#-\\[\\]-~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Plain keys that YAML 1.1 would read as booleans or null.
_RESERVED = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass(frozen=True)
class Document:
    """One document of a ledger file: its exact bytes, their hash, and where it starts."""

    raw: bytes
    start: int = -1
    """Offset in the file; negative for a document that is only in the spool."""

    @property
    def hash(self) -> str:
        """The required `prev` of the next document."""
        return hash_of(self.raw)

    @property
    def seq(self) -> int:
        """Position of the document in its file, from 1; 0 for a document without `seq`."""
        return int(field_of(self.raw, "seq") or 0)


HEADER = b"# kernel-harness ledger, format %d\n" % LEDGER_FORMAT
"""First line of a ledger file."""


def field_of(raw: bytes, name: Literal["format", "seq", "prev", "at"]) -> str | None:
    """Return one field of a document without parsing the document; None if it is missing or null.

    Args:
        name: the field; the writer puts each of these fields on a separate line.
    """
    match = _FIELDS[name].search(raw)
    return None if match is None or match[1] is None else match[1].decode(errors="replace")


def hash_of(raw: bytes) -> str:
    """Return `sha256:…` of a document's exact bytes, which begin with its `---` line and end before the next one."""
    return document_hash(hashlib.sha256(raw).hexdigest())


def document_hash(digest: str) -> str:
    """Return the hash of a document as the ledger writes it, from the hexadecimal digits of its SHA-256."""
    return f"sha256:{digest}"


def render(document: Mapping[str, Any]) -> bytes:
    """Return a document's bytes: one line per top-level key, and one flow mapping per item of a list of mappings.

    Raises:
        LedgerError: a value is not plain data.
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
    """Return an entry's bytes.

    Empty fields are omitted, except the `reason` of an entry with a verdict.

    """
    fields = entry.model_dump(mode="json", exclude_none=True)
    if entry.verdict is not None:
        fields["reason"] = entry.reason
    draft = [name for name in EntryDraft.model_fields if name in fields and fields[name] not in ([], {})]
    place = {"format": entry.format, "seq": entry.seq, "prev": entry.prev}
    return render({**place, **{name: fields[name] for name in draft}, "at": entry.at})


def split(content: bytes, where: str, *, start: int = 0) -> list[Document]:
    """Return the documents of a ledger file.

    Args:
        content: the whole file; empty for a file without documents.
        start: offset in bytes of the first document to return.

    Raises:
        LedgerError: the first line has no version, or one that this harness does not read.
    """
    if not content:
        return []
    check_header(content, where)
    starts = _starts(content, start)
    ends = [*starts[1:], len(content)] if starts else []
    return [Document(content[start:end], start) for start, end in zip(starts, ends, strict=True)]


def _starts(content: bytes, start: int) -> list[int]:
    """Return the places from `start` on where a line begins that is a document's first. `find` is faster than `re`."""
    starts = [start] if content.startswith(_DOCUMENT, start) and (start == 0 or content[start - 1] == ord("\n")) else []
    line = b"\n" + _DOCUMENT
    place = content.find(line, start)
    while place >= 0:
        starts.append(place + 1)
        place = content.find(line, place + 1)
    return starts


def check_header(content: bytes, where: str) -> None:
    """Check the format in a ledger file's first line.

    Args:
        content: the file, or its beginning.

    Raises:
        LedgerError: the file is not a ledger file, or has another format.
    """
    head = _HEAD.match(content)
    if head is None:
        raise LedgerError(
            f"not a ledger file: its first line must be `{HEADER.decode().strip()}`",
            where=f"{where}:1",
            remedy=f"see who changed it with `git log -p -- {where}`, and restore it from there",
        )
    check_format(int(head[1]), "the ledger file", f"{where}:1")


def parse(raw: bytes, where: str) -> dict[str, Any]:
    """Return a document as a mapping.

    Raises:
        LedgerError: the bytes are not YAML, not a mapping with an integer `seq`, or have another format.
    """
    try:
        document = load_yaml(raw, where=where, max_bytes=LEDGER_BYTES)
    except FormatError as error:
        raise LedgerError(error.message, where=where, remedy=_RESTORE) from error
    if not isinstance(document, dict) or type(document.get("seq")) is not int:
        raise LedgerError("not a ledger document: it must be a mapping with a whole number `seq`", where=where)
    check_format(document.get("format", LEDGER_FORMAT), "the document", where)
    return document


def parse_entry(raw: bytes, where: str) -> Entry:
    """Return a document as an entry.

    Raises:
        LedgerError: the document is not an entry; the message names each invalid field.
    """
    try:
        return Entry.model_validate(parse(raw, where))
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'entry'}: {item['msg']}" for item in error.errors())
        raise LedgerError(f"not a ledger entry: {fields}", where=where) from error


def _flow(value: object) -> list[str]:
    """Return a value in flow style as parts; a line may end between two of them."""
    if isinstance(value, Mapping):
        return _bracketed("{", [_flow_pair(key, item) for key, item in value.items()], "}")
    if isinstance(value, list | tuple):
        return _bracketed("[", [_flow(item) for item in value], "]")
    return [_scalar(value)]


def _flow_pair(key: object, value: object) -> list[str]:
    parts = _flow(value)
    return [f"{_key(key)}: {parts[0]}", *parts[1:]]


def _bracketed(opening: str, items: list[list[str]], closing: str) -> list[str]:
    if not items:
        return [opening + closing]
    for item in items[:-1]:
        item[-1] += ","
    items[0][0] = opening + items[0][0]
    items[-1][-1] += closing
    return [part for item in items for part in item]


def _wrap(prefix: str, parts: list[str]) -> str:
    """Return the parts filled into lines; YAML requires that lines after the first are indented."""
    lines = [prefix + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < _WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(f"   {part}")
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
    raise LedgerError(f"a ledger document contains plain values only, not {type(value).__name__}")


def _float(value: float) -> str:
    """Return Python's shortest exact form of a float, with the dot that YAML 1.1 requires: 1e-05 -> 1.0e-05."""
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
        return "\ufffd"  # a single surrogate, from a file name or a process' output, has no UTF-8 form
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}"


def check_format(version: object, subject: str, where: str, *, expected: int = LEDGER_FORMAT) -> None:
    """Check that this harness reads a format version.

    Args:
        subject: the part that has the version, for the message, such as `the document`.
        where: the file, with line or key.
        expected: the version that this harness reads.

    Raises:
        LedgerError: it is another version.
    """
    if type(version) is int and version == expected:
        return
    raise LedgerError(
        f"{subject} has format {version}, and this harness reads format {expected}",
        where=where,
        remedy="install a newer kernel-harness: build its wheel in a newer clone, then "
        "`pip install dist/kernel_harness-*.whl`",
    )
