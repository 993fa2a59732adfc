"""ledger/heads.yaml: the last document of each ledger file, which makes the truncation of a file detectable.

The first line contains the format of the ledger. A harness that does not read that format refuses the ledger here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from harness.errors import FormatError, LedgerError
from harness.formats.bounded import LEDGER_BYTES, load_yaml
from harness.formats.ledger_documents import check_format, check_header, field_of, hash_of
from harness.model.base_models import StrictModel
from harness.model.entry import LEDGER_FORMAT
from harness.model.paths import HEADS

HEADER = b"# kernel-harness heads, format %d\n" % LEDGER_FORMAT
_HEAD = re.compile(rb"# kernel-harness heads, format (\d{1,9})\n")
_REMEDY = f"restore it: `git log -p -- {HEADS}` shows who changed it; `harness audit` checks it against the files"
_LAST_START = b"\n---\n"


class Head(StrictModel):
    """The last document of one ledger file."""

    seq: int
    hash: str
    at: str


def read_heads(content: bytes | None) -> dict[str, Head]:
    """Return the head of each ledger file from the bytes of heads.yaml; an empty mapping if the file does not exist.

    Raises:
        LedgerError: the bytes are not a heads file, or have another format.
    """
    if content is None:
        return {}
    _check_header(content)
    try:
        parsed = load_yaml(content, where=HEADS, max_bytes=LEDGER_BYTES) or {}
        return {str(file): Head.model_validate(head) for file, head in parsed.items()}
    except FormatError as error:
        raise LedgerError(f"not a heads file: {error.message}", where=error.where, remedy=_REMEDY) from error
    except (ValidationError, AttributeError) as error:
        raise LedgerError(f"not a heads file: {' '.join(str(error).split())}", where=HEADS, remedy=_REMEDY) from error


def _check_header(content: bytes) -> None:
    head = _HEAD.match(content)
    if head is None:
        raise LedgerError(f"its first line must be `{HEADER.decode().strip()}`", where=f"{HEADS}:1", remedy=_REMEDY)
    check_format(int(head[1]), "the ledger", f"{HEADS}:1")


def render_heads(heads: Mapping[str, Head]) -> bytes:
    """Return the bytes of heads.yaml: one line per ledger file, sorted, so that a diff shows each file's change."""
    lines = [f"{json.dumps(file)}: {json.dumps(heads[file].model_dump())}\n" for file in sorted(heads)]
    return HEADER + "".join(lines).encode()


def head_of(raw: bytes, where: str) -> Head:
    """Return the head of a file whose last document is this one.

    Raises:
        LedgerError: the document has no `seq` or no `at`.
    """
    seq, at = field_of(raw, "seq"), field_of(raw, "at")
    if seq is None or at is None:
        raise LedgerError("a document without `seq` or `at`", where=where)
    return Head(seq=int(seq), hash=hash_of(raw), at=at)


def end_of(content: bytes | None, where: str) -> Head | None:
    """Return the head of a ledger file; None for a file without documents.

    Args:
        content: bytes of the file; None if it does not exist.

    Raises:
        LedgerError: the file is not a ledger file, or has another format.
    """
    if not content:
        return None
    check_header(content, where)
    start = content.rfind(_LAST_START)
    return None if start < 0 else head_of(content[start + 1 :], where)


def heads_of(files: Iterable[tuple[str, bytes]]) -> dict[str, Head]:
    """Return the heads of ledger files, computed from the files; files without documents have none."""
    ends = {file: end_of(content, file) for file, content in files}
    return {file: end for file, end in ends.items() if end is not None}


def with_heads_of(heads: bytes | None, files: Mapping[str, bytes | None]) -> bytes:
    """Return the bytes of heads.yaml with new heads of some ledger files.

    Args:
        heads: current bytes of heads.yaml; None if it does not exist.
        files: ledger file -> its new bytes; None for a file that does not exist.
    """
    ends = heads_of((file, content or b"") for file, content in files.items() if file != HEADS)
    return render_heads({**read_heads(heads), **ends})
