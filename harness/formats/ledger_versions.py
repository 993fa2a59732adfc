"""The format versions of ledger documents, and how a document of an earlier one is read.

Format 1: the first. Its documents do not name their format.
Format 2: every document names its format; a measured entry has `judge_protocol`, the judge's protocol version.

Documents are never rewritten. A document is read by the steps from its own format to the newest (`_STEPS`), so a new
format adds one step and keeps all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import LedgerError
from harness.model.entry import LEDGER_FORMAT, MEASURED

FORMAT_1_PROTOCOL = 1
"""The protocol version of every judge whose entries have format 1."""


def check_format(found: object, what: str, where: str, *, newest: int = LEDGER_FORMAT) -> int:
    """Return a format version that this harness reads.

    Args:
        found: the version in the file.
        what: the thing that has it, for the message.
        where: its file, with line or key.
        newest: the newest version that this harness reads.

    Raises:
        LedgerError: it is a newer version, or no version.
    """
    if type(found) is int and 1 <= found <= newest:
        return found
    readable = "format 1" if newest == 1 else f"formats 1 to {newest}"
    raise LedgerError(
        f"{what} has format {found}, and this harness reads {readable}",
        where=where,
        remedy="install a newer kernel-harness: `python -m pip install --upgrade kernel-harness`",
    )


def in_newest_format(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a parsed document with the newest format's fields; `format` keeps the one that it was written in.

    Raises:
        LedgerError: the document has a field that its format does not have.
    """
    written = int(document.get("format", 1))
    current = {**document, "format": written}
    for version in range(written, LEDGER_FORMAT):
        current = _STEPS[version](current, where)
    return current


def written_format(document: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the fields of a document as a format writes them; `document` has the newest format's, less `format`.

    Raises:
        LedgerError: the format has no place for a value.
    """
    if version >= 2:
        return {"format": version, **document}
    protocol = document.get("judge_protocol", FORMAT_1_PROTOCOL)
    if protocol != FORMAT_1_PROTOCOL:
        raise LedgerError(
            f"a ledger of format 1 cannot record entries of a judge of protocol {protocol}",
            remedy="upgrade the ledger: `harness ledger upgrade`",
        )
    return {name: value for name, value in document.items() if name != "judge_protocol"}


def _from_1(document: dict[str, Any], where: str) -> dict[str, Any]:
    """Format 1 to 2: the judge's protocol version was 1 until then."""
    if "judge_protocol" in document:
        raise LedgerError("judge_protocol: documents of format 1 have no such field", where=where)
    return {**document, "judge_protocol": FORMAT_1_PROTOCOL} if document.get("kind") in MEASURED else document


_STEPS: Mapping[int, Callable[[dict[str, Any], str], dict[str, Any]]] = {1: _from_1}
"""Format version -> the step to the next one."""
