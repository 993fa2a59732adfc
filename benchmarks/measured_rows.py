"""Results of a long benchmark as JSON lines. Each is appended when it is measured, so that a run can be resumed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError


class MeasuredRow(BaseModel):
    """One evaluation. Rows with different judge versions, loads or numbers of workloads are never counted together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: str
    case: str
    judge_version: str
    busy: int
    """Number of busy loops that ran at the same time."""
    workloads: int
    """Maximum workloads of a problem."""
    session: str = ""
    """Identifier of the judge process, if several evaluations share one."""
    verdict: str
    reason: str | None = None
    speedup: float | None = None
    ci95_low: float | None = None
    ci95_high: float | None = None
    latency_us: float | None = None
    """Latency of the first workload."""
    process_error: float | None = None
    placement_error: float | None = None
    trust: str | None = None
    block_error: float | None = None
    """Standard error of ln(speedup) from the blocks alone, without the differences between processes."""
    discarded: int = 0
    """Number of discarded blocks."""
    handshake_us: float | None = None
    judge_s: float
    to_entry_s: float | None = None
    """Seconds from the commit to the evaluation's entry."""
    to_confirmation_s: float | None = None
    """Seconds from the commit to the confirmation's entry, if the candidate was confirmed."""


def read_rows(file: Path, like: MeasuredRow) -> list[MeasuredRow]:
    """Return the rows of a file with the part, judge version, load and workloads of `like`.

    A truncated line is ignored, so that its measurement is repeated.

    Args:
        file: the file of rows.
        like: a row with the required values.
    """
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValidationError):
                rows.append(MeasuredRow.model_validate_json(line))
    return [row for row in rows if _group(row) == _group(like)]


def append_row(file: Path, row: BaseModel) -> None:
    """Append a row and flush it to disk.

    Args:
        file: the file of rows.
        row: the row.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as stream:
        if stream.tell() and not _ends_with_newline(file):
            stream.write(b"\n")
        stream.write(row.model_dump_json(exclude_none=True).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def _ends_with_newline(file: Path) -> bool:
    return file.read_bytes().endswith(b"\n")


def _group(row: MeasuredRow) -> tuple[str, str, int, int]:
    return row.part, row.judge_version, row.busy, row.workloads
