"""ledger/heads.yaml: where each ledger file ends, so that cutting a tail shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import LedgerError
from harness.store.entry_yaml import check_header, field_of, hash_of, render, split
from harness.store.spool import Record

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
        parsed = yaml.load(content, Loader=yaml.CSafeLoader) or {}
        return {str(file): Head.model_validate(head) for file, head in parsed.items()}
    except (yaml.YAMLError, ValidationError, AttributeError) as error:
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


def still_to_commit(file: str, records: Sequence[Record], content: bytes | None) -> list[Record]:
    """Those of a file's spooled records that the branch's file does not hold yet.

    A crash between the commit and the deletion of the spool's segment leaves records in both places; they are the same
    when file, seq and hash are.

    Raises:
        LedgerError: the records do not go on from the file's end.
    """
    end = end_of(content, file)
    before = end.hash if end else None
    if records and field_of(records[0].raw, "prev") == before:
        return list(records)
    held = {document.hash for document in split(content or b"", file)}
    fresh = [record for record in records if record.hash not in held]
    if fresh and field_of(fresh[0].raw, "prev") != before:
        raise LedgerError(
            f"the branch's file ends at seq {end.seq if end else 0}, and the spool goes on from seq "
            f"{fresh[0].seq - 1} of another chain: committed entries were removed from the branch or changed",
            where=file,
            remedy="nothing spooled is lost. Bring the branch's commits back (`git reflog` of the coordination branch "
            "shows them), then start again",
        )
    return fresh


def heads_of(files: Iterable[tuple[str, bytes]]) -> dict[str, Head]:
    """Heads from the files themselves, for a ledger that has no heads.yaml yet."""
    ends = {file: end_of(content, file) for file, content in files}
    return {file: end for file, end in ends.items() if end is not None}


def with_heads_of(heads: bytes | None, files: Mapping[str, bytes | None]) -> bytes:
    """heads.yaml's bytes with the heads of some ledger files taken from the files themselves."""
    ends = heads_of((file, content or b"") for file, content in files.items() if file != HEADS)
    return render_heads({**read_heads(heads), **ends})


def record_of(file: str, document: Mapping[str, Any]) -> Record:
    """A document as the spool takes it."""
    return Record(file, render(document))
