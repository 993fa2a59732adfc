"""The spool: ledger documents that are on disk and not yet on the coordination branch.

Each writer has one directory under the git common directory, with segments `00000001.spool`, `00000002.spool`, … of
framed records. A record is on disk (fsynced) before `append` returns. A flush closes the open segment, commits the
records of the closed ones, and deletes them; new records go to the next segment meanwhile. A crash leaves whole records
or a torn tail, which was never acknowledged. The tail is cut, set aside in a file, and reported.

A frame is the line `record <bytes> <sha256> <ledger file>`, the document's bytes, and a line feed; the checksum covers
the file's name, a line feed and the bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import LedgerError
from harness.failpoints import failpoint
from harness.formats.ledger_documents import Document, check_format, field_of, split
from harness.formats.ledger_heads import end_of
from harness.workspace.files import atomic_write, sync_directory

FORMAT = 1
HEADER = b"# kernel-harness spool, format %d\n" % FORMAT
_HEAD = re.compile(rb"# kernel-harness spool, format (\d{1,9})\n")
_FRAME = re.compile(rb"record (\d{1,12}) ([0-9a-f]{64}) ([^\n]+)\n")
_SEGMENTS = f"{'[0-9]' * 8}.spool"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Record(Document):
    """One spooled document and its ledger file."""

    file: str = field(kw_only=True)


class Spool:
    """One writer's spool, open for appending. The caller holds the writer's lock.

    Opening cuts torn tails; the next record starts a new segment.

    Raises:
        LedgerError: the directory cannot be written, or whole records follow a damaged one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recovered: list[str] = []
        """Sentences about torn tails that were cut."""
        self._fd: int | None = None
        self._path: Path | None = None
        self._size = self._last = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in segments(directory):
                self._last = int(path.stem)
                self._cut_torn_tail(path)
        except OSError as error:
            raise _unwritable(directory, error) from error

    def append(self, record: Record) -> None:
        """Write one record and fsync it. After an exception, no part of the record is stored.

        Raises:
            LedgerError: the disk is full, the spool is read-only, or it cannot be written for another reason.
        """
        frame = _frame(record)
        try:
            fd = self._start_segment() if self._fd is None else self._fd
            os.ftruncate(fd, self._size)  # a failed append before this one may have left bytes
            failpoint("spool.before_write")
            _write(fd, frame[: len(frame) // 2], self._size)
            failpoint("spool.half_written")
            _write(fd, frame[len(frame) // 2 :], self._size + len(frame) // 2)
            failpoint("spool.before_sync")
            os.fsync(fd)
        except OSError as error:
            self._undo()
            raise _unwritable(self.directory, error) from error
        self._size += len(frame)
        failpoint("spool.after_sync")

    def close_segment(self) -> list[Path]:
        """Close the open segment's file, and return every closed segment, oldest first; the records stay."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd, self._path, self._size = None, None, 0
        failpoint("spool.after_close_segment")
        return segments(self.directory)

    def drop(self, closed: list[Path]) -> None:
        """Delete segments whose records are on the coordination branch, oldest first."""
        failpoint("spool.before_drop")
        try:
            for path in closed:
                path.unlink(missing_ok=True)
                failpoint("spool.after_drop_one")
            sync_directory(self.directory)
        except OSError as error:
            raise _unwritable(self.directory, error) from error
        failpoint("spool.after_drop")

    def _start_segment(self) -> int:
        path = self.directory / f"{self._last + 1:08d}.spool"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._fd, self._path = fd, path
        _write(fd, HEADER, 0)
        sync_directory(self.directory)
        self._size = len(HEADER)
        self._last += 1
        failpoint("spool.after_new_segment")
        return fd

    def _undo(self) -> None:
        """Remove the bytes of a failed append; if that fails, the next append or opening removes them."""
        if self._fd is None:
            return
        with suppress(OSError):
            if self._size:
                os.ftruncate(self._fd, self._size)
            else:  # the segment itself could not be started
                os.close(self._fd)
                self._fd = None
                if self._path is not None:
                    self._path.unlink(missing_ok=True)

    def _cut_torn_tail(self, path: Path) -> None:
        """Cut a segment's torn tail, set it aside, and report it."""
        content = path.read_bytes()
        whole = len(HEADER) if content.startswith(HEADER) else 0
        whole += sum(len(_frame(record)) for record in _records(content, path))
        if whole == len(content):
            return
        torn = content[whole:]
        later = next((match for match in _FRAME.finditer(torn) if match.start() and _whole(torn, match)), None)
        if later is not None:
            raise LedgerError(
                f"a record is damaged at byte {whole}, and whole ones follow it at byte {whole + later.start()}: "
                "the cause is not a crash, but a disk or an editor",
                where=str(path),
                remedy=f"keep a copy of the file, then cut it: `truncate -s {whole} '{path}'`; "
                "the ledger loses the records after that",
            )
        aside = path.with_suffix(f".torn-at-{whole}")
        if aside.exists() and aside.read_bytes() != torn:
            aside = path.with_suffix(f".torn-at-{whole}-{hashlib.sha256(torn).hexdigest()[:8]}")
        atomic_write(aside, torn)
        failpoint("spool.torn_set_aside")
        if whole > len(HEADER):
            with path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())
        else:
            path.unlink()
            sync_directory(self.directory)
        failpoint("spool.torn_cut")
        self.recovered.append(
            f"{path}: the last {len(torn)} bytes were a record torn by a crash, never acknowledged: cut, "
            f"and set aside in {aside.name}"
        )


def segments(directory: Path) -> list[Path]:
    """Return a spool's segments, oldest first."""
    return sorted(directory.glob(_SEGMENTS))


def read_segment(path: Path) -> list[Record]:
    """Return the whole records of a segment, without a tail that is torn or being written.

    A missing segment has been committed: its records are on the branch.

    Raises:
        LedgerError: the segment is of a newer format.
    """
    try:
        return _records(path.read_bytes(), path)
    except FileNotFoundError:
        return []


def all_segments(spools: Path) -> list[Path]:
    """Return every writer's segments, each writer's in order."""
    return [path for writer in sorted(spools.glob("*")) for path in segments(writer)]


def read_all(spools: Path) -> list[Record]:
    """Return every writer's whole records, each file's in order. Any process may read while the writers write."""
    return [record for path in all_segments(spools) for record in read_segment(path)]


def signature(spools: Path) -> str:
    """Return a text that changes with every change of a spool's records, from the segments' sizes."""
    parts = []
    for path in all_segments(spools):
        with suppress(FileNotFoundError):
            parts.append(f"{path.parent.name}/{path.name}={path.stat().st_size}")
    return " ".join(parts)


def _records(content: bytes, path: Path) -> list[Record]:
    return [frame.record for frame in frames(content, len(HEADER))] if has_header(content, path) else []


def has_header(content: bytes, path: Path) -> bool:
    """Return whether a segment's first line is written.

    Args:
        path: the segment, for error messages.

    Raises:
        LedgerError: the segment has another format.
    """
    head = _HEAD.match(content)
    if head is not None:
        check_format(int(head[1]), "the spool", f"{path}:1", expected=FORMAT)
    return head is not None


@dataclass(frozen=True)
class Frame:
    """Position and content of a whole record in a segment."""

    start: int
    end: int
    checksum: str
    record: Record


def frames(content: bytes, position: int) -> Iterator[Frame]:
    """Yield the whole records from a position on, up to the first that is torn or being written.

    Args:
        position: offset of a record's first byte.
    """
    while (match := _FRAME.match(content, position)) and _whole(content, match):
        end = match.end() + int(match[1])
        record = Record(content[match.end() : end], file=match[3].decode("utf-8", "surrogateescape"))
        yield Frame(position, end + 1, match[2].decode(), record)
        position = end + 1


def _whole(content: bytes, match: re.Match[bytes]) -> bool:
    end = match.end() + int(match[1])
    raw = content[match.end() : end]
    return content[end : end + 1] == b"\n" and _checksum(match[3], raw) == match[2]


def _frame(record: Record) -> bytes:
    name = record.file.encode("utf-8", "surrogateescape")
    return b"record %d %s %s\n%s\n" % (len(record.raw), _checksum(name, record.raw), name, record.raw)


def _checksum(name: bytes, raw: bytes) -> bytes:
    return hashlib.sha256(name + b"\n" + raw).hexdigest().encode()


def _write(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`; a full disk may accept only a part and fail at the next attempt."""
    view = memoryview(data)
    while view:
        byte_count = os.pwrite(fd, view, offset)
        view, offset = view[byte_count:], offset + byte_count


def _unwritable(directory: Path, error: OSError) -> LedgerError:
    message = f"the ledger's spool cannot be written ({error.strerror or error})"
    remedy = "repair the disk or file system, then restart: all earlier entries are safe"
    if error.errno in _FULL:
        message = f"no space left to write the ledger's spool ({error.strerror}); no part of the entry is stored"
        remedy = "free some space (`df -h` shows where), then restart: all earlier entries are safe"
    elif error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        remedy = f"make it writable for this user: `ls -ld '{directory}'` shows who may"
    return LedgerError(message, where=str(directory), remedy=remedy)


def still_to_commit(file: str, records: Sequence[Record], content: bytes | None) -> list[Record]:
    """Return those of a file's spooled records that the branch's file does not hold yet.

    A crash between the commit and the deletion of the spool's segment leaves records in both places. Records are
    identical if file, seq and hash are.

    Args:
        records: the file's spooled records, oldest first.
        content: the file on the branch; None if it is missing.

    Raises:
        LedgerError: the records do not continue the file's end.
    """
    end = end_of(content, file)
    before = end.hash if end else None
    if records and field_of(records[0].raw, "prev") == before:
        return list(records)
    committed_hashes = {document.hash for document in split(content or b"", file)}
    fresh = [record for record in records if record.hash not in committed_hashes]
    if fresh and field_of(fresh[0].raw, "prev") != before:
        raise LedgerError(
            f"the branch's file ends at seq {end.seq if end else 0}, and the spool continues from seq "
            f"{fresh[0].seq - 1} of another chain: committed entries were removed from the branch or changed",
            where=file,
            remedy="the spool keeps its documents. Restore the branch's commits (`git reflog` of the coordination "
            "branch lists them), then restart",
        )
    return fresh
