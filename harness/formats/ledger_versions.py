"""Format versions of ledger documents, and the conversion of earlier formats to the newest one.

Format 1: the first. Its documents do not name their format.
Format 2: every document names its format; a measured entry has `judge_protocol`, the judge's protocol version.

Documents are never rewritten. Reading converts a document from its own format to the newest one, version by version
(`_STEPS`). So a new format adds one step and keeps all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import LedgerError
from harness.model.entry import LEDGER_FORMAT, MEASURED

FORMAT_1_PROTOCOL = 1
"""Protocol version of all judges with entries of format 1."""


def check_format(version: object, subject: str, where: str, *, newest: int = LEDGER_FORMAT) -> int:
    """Return a format version after checking that this harness reads it.

    Args:
        version: the version in the file.
        subject: the part that has the version, for the message, such as `the document`.
        where: the file, with line or key.
        newest: the newest version that this harness reads.

    Raises:
        LedgerError: the version is newer, or not a version.
    """
    if type(version) is int and 1 <= version <= newest:
        return version
    readable = "format 1" if newest == 1 else f"formats 1 to {newest}"
    raise LedgerError(
        f"{subject} has format {version}, and this harness reads {readable}",
        where=where,
        remedy="install a newer kernel-harness: `python -m pip install --upgrade kernel-harness`",
    )


def in_newest_format(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a parsed document with the fields of the newest format; `format` remains that of the document.

    Args:
        document: the parsed document, in any readable format.
        where: file and line of the document, for messages.

    Raises:
        LedgerError: the document has a field that its format does not have.
    """
    original_format = int(document.get("format", 1))
    converted = {**document, "format": original_format}
    for version in range(original_format, LEDGER_FORMAT):
        converted = _STEPS[version](converted, where)
    return converted


def written_format(document: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the fields of a document in a format.

    Args:
        document: fields of the newest format, without `format`.
        version: the format to convert to.

    Raises:
        LedgerError: the format cannot represent a value.
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
    """Convert format 1 to 2: every judge of format 1 has protocol version 1."""
    if "judge_protocol" in document:
        raise LedgerError("judge_protocol: documents of format 1 have no such field", where=where)
    return {**document, "judge_protocol": FORMAT_1_PROTOCOL} if document.get("kind") in MEASURED else document


_STEPS: Mapping[int, Callable[[dict[str, Any], str], dict[str, Any]]] = {1: _from_1}
"""Format version -> conversion to the next version."""
