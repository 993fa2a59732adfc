"""Incremental reading of the spools: the cost of a read depends on the records since the last read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.ledger.spool import HEADER, Record, all_segments, frames, has_header


@dataclass(frozen=True)
class SegmentPosition:
    """A reader's position in one segment."""

    end: int = 0
    """Number of bytes read: the end of a whole record, or of the segment's first line."""
    last: int = 0
    """Offset of the last record; 0 before the first."""
    checksum: str = ""
    """Checksum of the last record. A segment with another record there is another segment of the same name."""


@dataclass(frozen=True)
class SpoolNews:
    """Records of the spools that are new for a reader."""

    records: Sequence[Record]
    positions: Mapping[str, SegmentPosition]
    """`<writer>/<segment>` -> position after this read."""
    complete: bool
    """True if `records` are all records of the spools, because a former segment is missing or replaced."""


def read_news(spools: Path, former: Mapping[str, SegmentPosition]) -> SpoolNews:
    """Return the records that were appended since `former`, or all records if a former segment is missing.

    Args:
        spools: the directory of every writer's spool.
        former: the positions after the previous read.

    Raises:
        LedgerError: a segment is of a newer format.
    """
    records: list[Record] = []
    positions: dict[str, SegmentPosition] = {}
    for path in all_segments(spools):
        name = f"{path.parent.name}/{path.name}"
        try:
            news, positions[name] = _read_on(path, former.get(name, SegmentPosition()))
        except (FileNotFoundError, _AnotherSegment):
            continue  # all are read again if the position was known; otherwise the records have just been committed
        records += news
    if former.keys() <= positions.keys():
        return SpoolNews(records, positions, complete=not former)
    return read_news(spools, {})


class _AnotherSegment(Exception):  # noqa: N818 - a signal between two functions of this module
    """A segment lacks the records that were read from it before."""


def _read_on(path: Path, former: SegmentPosition) -> tuple[list[Record], SegmentPosition]:
    """Return the records after a position, and the position behind them."""
    with path.open("rb") as file:
        if former.last:
            file.seek(former.last)
            last = next(frames(file.read(former.end - former.last), 0), None)
            if last is None or last.checksum != former.checksum:
                raise _AnotherSegment
        file.seek(former.end)
        content = file.read()
    if not former.end and not has_header(content, path):
        return [], former
    new_frames = list(frames(content, 0 if former.end else len(HEADER)))
    if not new_frames:
        return [], former if former.end else SegmentPosition(len(HEADER))
    last = new_frames[-1]
    position = SegmentPosition(former.end + last.end, former.end + last.start, last.checksum)
    return [frame.record for frame in new_frames], position
