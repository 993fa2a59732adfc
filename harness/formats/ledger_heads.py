"""ledger/heads.yaml: where each ledger file ends, so that cutting a tail shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import FormatError, LedgerError
from harness.formats.bounded import LEDGER_BYTES, load_yaml
from harness.formats.ledger_documents import check_header, field_of, hash_of

LEDGER = "ledger"
HEADS = "ledger/heads.yaml"
HEADER = b"# kernel-harness heads, format 1\n"
_LAST = b"\n---\n"


class Head(BaseModel):
    """The last document of one ledger file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int
    hash: str
    at: str


def read_heads(content: bytes | None) -> dict[str, Head]:
    """heads.yaml's bytes as file -> head; nothing where there is no such file yet.

    Raises:
        LedgerError: the bytes are no heads file of format 1.
    """
    if content is None:
        return {}
    remedy = f"restore it: `git log -p -- {HEADS}` shows who changed it; `harness audit` checks it against the files"
    if not content.startswith(HEADER):
        raise LedgerError(f"its first line must be `{HEADER.decode().strip()}`", where=f"{HEADS}:1", remedy=remedy)
    try:
        parsed = load_yaml(content, where=HEADS, max_bytes=LEDGER_BYTES) or {}
        return {str(file): Head.model_validate(head) for file, head in parsed.items()}
    except FormatError as error:
        raise LedgerError(f"not a heads file: {error.what}", where=error.where, remedy=remedy) from error
    except (ValidationError, AttributeError) as error:
        raise LedgerError(f"not a heads file: {' '.join(str(error).split())}", where=HEADS, remedy=remedy) from error


def render_heads(heads: Mapping[str, Head]) -> bytes:
    """heads.yaml's bytes, one line a file, sorted, so that two writers' changes stay apart in a diff."""
    lines = [f"{json.dumps(file)}: {json.dumps(heads[file].model_dump())}\n" for file in sorted(heads)]
    return HEADER + "".join(lines).encode()


def head_of(raw: bytes, where: str) -> Head:
    """The head a file has when it ends with this document."""
    seq, at = field_of(raw, "seq"), field_of(raw, "at")
    if seq is None or at is None:
        raise LedgerError("a document without `seq` or `at`", where=where)
    return Head(seq=int(seq), hash=hash_of(raw), at=at)


def end_of(content: bytes | None, where: str) -> Head | None:
    """The head of a ledger file, from its bytes; None when it holds no document."""
    if not content:
        return None
    check_header(content, where)
    start = content.rfind(_LAST)
    return None if start < 0 else head_of(content[start + 1 :], where)


def heads_of(files: Iterable[tuple[str, bytes]]) -> dict[str, Head]:
    """Heads from the files themselves, for a ledger that has no heads.yaml yet."""
    ends = {file: end_of(content, file) for file, content in files}
    return {file: end for file, end in ends.items() if end is not None}


def with_heads_of(heads: bytes | None, files: Mapping[str, bytes | None]) -> bytes:
    """heads.yaml's bytes with the heads of some ledger files taken from the files themselves."""
    ends = heads_of((file, content or b"") for file, content in files.items() if file != HEADS)
    return render_heads({**read_heads(heads), **ends})
