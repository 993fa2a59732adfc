"""Reads what was appended to the spools since the last time, so that a reader's cost follows what is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.ledger.spool import HEADER, Record, frames, has_header, segments


@dataclass(frozen=True)
class SegmentPosition:
    """How far a reader has read one segment."""

    end: int = 0
    """Bytes read: the end of a whole record, or of the segment's first line."""
    last: int = 0
    """Where the last record begins; 0 before the first."""
    checksum: str = ""
    """Of the last record. A segment that has another record there is another segment of the same name."""


@dataclass(frozen=True)
class SpoolNews:
    """What a reader of the spools has not seen yet."""

    records: Sequence[Record]
    positions: Mapping[str, SegmentPosition]
    """`<writer>/<segment>` -> how far it is read now."""
    complete: bool
    """The records are all that the spools hold: a segment that was read before is gone or was replaced."""


def read_news(spools: Path, known: Mapping[str, SegmentPosition]) -> SpoolNews:
    """Return the records that were appended since `known`; or all records, where a known segment is gone.

    Args:
        spools: the directory of every writer's spool.
        known: the positions of the reading before.

    Raises:
        LedgerError: a segment is of a newer format.
    """
    writers = sorted(path for path in spools.iterdir() if path.is_dir()) if spools.is_dir() else []
    records: list[Record] = []
    positions: dict[str, SegmentPosition] = {}
    for path in (path for writer in writers for path in segments(writer)):
        name = f"{path.parent.name}/{path.name}"
        try:
            news, positions[name] = _read_on(path, known.get(name, SegmentPosition()))
        except (FileNotFoundError, _AnotherSegment):
            continue  # where it was known, all are read again; where not, its records have just been committed
        records += news
    if known.keys() <= positions.keys():
        return SpoolNews(records, positions, complete=not known)
    return read_news(spools, {})


class _AnotherSegment(Exception):  # noqa: N818 - a signal between two functions here, never seen outside
    """A segment does not hold what was read of it before."""


def _read_on(path: Path, known: SegmentPosition) -> tuple[list[Record], SegmentPosition]:
    """Return the records after a position, and the position behind them."""
    with path.open("rb") as file:
        if known.last:
            file.seek(known.last)
            last = next(frames(file.read(known.end - known.last), 0), None)
            if last is None or last.checksum != known.checksum:
                raise _AnotherSegment
        file.seek(known.end)
        content = file.read()
    if not known.end and not has_header(content, path):
        return [], known
    found = list(frames(content, 0 if known.end else len(HEADER)))
    if not found:
        return [], known if known.end else SegmentPosition(len(HEADER))
    last = found[-1]
    position = SegmentPosition(known.end + last.end, known.end + last.start, last.checksum)
    return [frame.record for frame in found], position
