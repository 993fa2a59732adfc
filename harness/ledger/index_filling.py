"""Updates of the index: the rows of the coordination branch and the spools."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple
from functools import cached_property, lru_cache, partial
from typing import NamedTuple, get_type_hints

from harness.errors import LedgerError
from harness.formats.ledger_documents import Document, document_hash, parse, split
from harness.git.repo import Repo
from harness.ledger.entry_rows import ROW_FIELDS, Row, row_of
from harness.ledger.spool import Record, signature
from harness.ledger.spool_news import SegmentPosition, read_news
from harness.model.paths import LEDGER, parse_ledger_file
from harness.model.verdict import EntryKind
from harness.model.weaknesses import MeasurementFacts, facts_of_document
from harness.workspace.directories import Workspace

SCHEMA = "kernel-harness index 7"
Progress = Callable[[int, int], None]
"""Called with the bytes of the ledger read so far, and the bytes to read."""

_BATCH = 500
_NOTHING = hashlib.sha256().hexdigest()
_TYPES = {int: "INTEGER", int | None: "INTEGER", float | None: "REAL"}
_COLUMNS = ", ".join(f'"{name}" {_TYPES.get(kind, "TEXT")}' for name, kind in get_type_hints(Row).items())
_MARKS = ", ".join("?" for _ in range(len(ROW_FIELDS) + 6))
TABLES = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE files (file TEXT PRIMARY KEY, blob TEXT, bytes INTEGER, digest TEXT) WITHOUT ROWID;
CREATE TABLE segments (name TEXT PRIMARY KEY, end INTEGER, last INTEGER, checksum TEXT) WITHOUT ROWID;
CREATE TABLE changes (problem TEXT PRIMARY KEY, revision INTEGER) WITHOUT ROWID;
CREATE TABLE appended (
  file TEXT, old TEXT, new TEXT, bytes INTEGER, digest TEXT, hashes TEXT, PRIMARY KEY (file, old, new)
) WITHOUT ROWID;
CREATE TABLE entries (
  {_COLUMNS}, form INTEGER, candidate INTEGER, source INTEGER, binary INTEGER, hash TEXT, committed INTEGER,
  PRIMARY KEY (problem, seq)
) WITHOUT ROWID;
CREATE TABLE documents (problem TEXT, seq INTEGER, body BLOB, PRIMARY KEY (problem, seq));
"""
INDEXES = """
CREATE INDEX by_tree ON entries (tree);
CREATE INDEX by_run ON entries (run, target, at);
CREATE INDEX by_verdict ON entries (run, target, at) WHERE verdict = 'SUSPECT';
CREATE INDEX by_protocol ON entries (run, judge_protocol);
CREATE INDEX by_time ON entries (at);
CREATE INDEX standing ON entries (
  kind, problem, seq, target, run, verdict, worker, speedup, speedup_ci95_low, cost_s, judge_protocol, form,
  candidate, source, binary, answered_from
);
CREATE INDEX by_revision ON changes (revision);
CREATE INDEX waiting ON entries (committed) WHERE committed = 0;
"""
"""Made after the first filling: one sort costs less than as many insertions."""


@lru_cache(maxsize=4096)
def short_id(text: str | None) -> int | None:
    """Return a digest or object id as 60 bits: columns `form` to `binary`, so that standings read fewer bytes."""
    return None if text is None else int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def update(
    database: sqlite3.Connection, workspace: Workspace, repo: Repo, branch: str, progress: Progress
) -> list[str]:
    """Update an index, within its transaction, to the branch's tip and the spools.

    Args:
        database: the index, in a transaction.
        branch: the coordination branch.
        progress: called with the bytes read so far and the bytes to read.

    Returns:
        Sentences about rewritten files and unreadable documents.
    """
    # The spools first: a document that a flush moves to the branch meanwhile is then read twice, never missed.
    state = {"spool": signature(workspace.spool)}
    segments = database.execute("SELECT * FROM segments")
    former_positions = {name: SegmentPosition(*position_fields) for name, *position_fields in segments}
    news = read_news(workspace.spool, former_positions)
    state["tip"] = repo.tip(branch)
    with ThreadPoolExecutor(2, thread_name_prefix="index-filling") as pool:
        filling = _Filling(database, pool)
        if database.execute("SELECT value FROM meta WHERE name = 'tip'").fetchone() != (state["tip"],):
            filling.branch(repo, branch, state["tip"], progress)
        filling.spool(news.records, complete=news.complete)
        filling.finish()
    if news.positions != former_positions:
        database.execute("DELETE FROM segments")
        rows = [(name, *astuple(position)) for name, position in news.positions.items()]
        database.executemany("INSERT INTO segments VALUES (?, ?, ?, ?)", rows)
    database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", state.items())
    return filling.messages


_Compressed = tuple[str, bytes]
"""SHA-256 of a document in hexadecimal digits, and the document compressed with zlib."""


def _compressed(documents: Sequence[bytes]) -> list[_Compressed]:
    return [(hashlib.sha256(document).hexdigest(), zlib.compress(document, level=1)) for document in documents]


class _NewRow(NamedTuple):
    problem: str
    seq: int
    values: tuple[object, ...]
    """Values of the columns up to `hash`."""
    committed: int
    raw: bytes


class _Filling:
    """One update's batch of rows, and messages about unusual events."""

    def __init__(self, database: sqlite3.Connection, pool: ThreadPoolExecutor) -> None:
        self._database, self._pool = database, pool
        self._changed: set[str] = set()
        """Problems whose entries have changed."""
        self._rows: list[_NewRow] = []
        self._compressing: tuple[list[_NewRow], Future[list[_Compressed]]] | None = None
        """The last batch, whose documents another thread hashes and compresses."""
        self._cited: dict[tuple[str, int], int | None] = {}
        """(problem, seq) of an evaluation -> the `seq` of its baseline entry."""
        self._baselines: dict[tuple[str, int], MeasurementFacts | None] = {}
        self.messages: list[str] = []

    @cached_property
    def _waiting(self) -> dict[tuple[str, int], str]:
        """Return (problem, seq) -> hash, of the entries that only the spools hold."""
        rows = self._database.execute("SELECT problem, seq, hash FROM entries WHERE committed = 0")
        return {(problem, seq): digest for problem, seq, digest in rows}

    def branch(self, repo: Repo, branch: str, tip: str, progress: Progress) -> None:
        """Read the documents that were appended to each ledger file since the last update.

        A file whose end a person's reset cut off keeps its rows: the harness' next commit restores the end.
        """
        rows = self._database.execute("SELECT file, blob, bytes, digest FROM files")
        former_files = {file: former_state for file, *former_state in rows}
        present = {file: blob for file, blob in repo.blobs(tip, LEDGER).items() if parse_ledger_file(file)}
        sizes = {file: present[file].bytes if file in present else -1 for file in former_files}
        shorter = {file for file, (_, size, _) in former_files.items() if sizes[file] < size}
        cut_off = shorter.intersection(repo.lost_appends(branch)) if shorter else set()
        for file in former_files.keys() - present.keys() - cut_off:
            self._forget(file, f"{file} is missing on the coordination branch: the index drops its entries")
        blob_ids = {file: former_blob for file, (former_blob, _, _) in former_files.items()}
        readable = {file: blob for file, blob in sorted(present.items()) if file not in cut_off}
        changed = {file: blob for file, blob in readable.items() if blob_ids.get(file) != blob.id}
        done, total = 0, sum(blob.bytes - int(former_files.get(file, (0, 0))[1]) for file, blob in changed.items())
        whole = [file for file, blob in changed.items() if not self._is_appended(file, blob_ids.get(file), blob.id)]
        for file, content in self._contents(repo, tip, whole):
            blob = changed[file]
            _, start, digest = former_files.get(file, (None, 0, _NOTHING))
            read = hashlib.sha256(content[:start])
            if len(content) < start or read.hexdigest() != digest:
                self._forget(file, f"{file} was rewritten, not appended to: `harness audit` shows the difference")
                start, read = 0, hashlib.sha256()
            for document in split(content, file, start=start):
                self._add(parse_ledger_file(file) or "", file, document, committed=True)
                done += len(document.raw)
                if len(self._rows) >= _BATCH:
                    self.write()
                    progress(done, total)
            read.update(content[start:])
            values = (file, blob.id, len(content), read.hexdigest())
            self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", values)
        self.write(wait=True)
        progress(max(done, total), max(done, total))

    def _contents(self, repo: Repo, tip: str, files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield files with their contents. Another thread reads the next file from git meanwhile."""
        following = self._pool.submit(repo.read, tip, files[0]) if len(files) > 1 else None
        for number, file in enumerate(files):
            content = following.result() if following else repo.read(tip, file)
            if following:
                following = self._pool.submit(repo.read, tip, files[number + 1]) if number + 1 < len(files) else None
            yield file, content or b""

    def _is_appended(self, file: str, old: str | None, new: str) -> bool:
        """Mark a file's spooled entries as committed if the writer has recorded its new version."""
        query = "SELECT bytes, digest, hashes FROM appended WHERE file = ? AND old = ? AND new = ?"
        noted = self._database.execute(query, (file, old, new)).fetchone()
        if noted is None:
            return False
        size, digest, hashes = noted
        problem = parse_ledger_file(file) or ""
        keys = [(problem, int(seq)) for seq in hashes.split()[::2]]
        if [self._waiting.get(key) for key in keys] != hashes.split()[1::2]:
            return False
        self._database.executemany("UPDATE entries SET committed = 1 WHERE problem = ? AND seq = ?", keys)
        for key in keys:
            del self._waiting[key]
        self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", (file, new, size, digest))
        self._database.execute("DELETE FROM appended WHERE file = ?", (file,))
        return True

    def spool(self, records: Sequence[Record], *, complete: bool) -> None:
        """Add the documents that only the spools hold.

        If the records are complete, drop the rows of documents that neither the spools nor the branch hold.
        """
        entries = [(problem, record) for record in records if (problem := parse_ledger_file(record.file))]
        if complete:
            spooled_hashes = {(problem, record.seq): record.hash for problem, record in entries}
            dropped = [key for key, digest in self._waiting.items() if spooled_hashes.get(key) != digest]
            self._database.executemany("DELETE FROM entries WHERE problem = ? AND seq = ? AND committed = 0", dropped)
            self._changed |= {problem for problem, _ in dropped}
        for problem, record in entries:
            query = "SELECT 1 FROM entries WHERE problem = ? AND seq = ?"
            if not self._database.execute(query, (problem, record.seq)).fetchone():
                self._add(problem, record.file, record, committed=False)

    def finish(self) -> None:
        """Write the last batch, and the problems whose entries changed under a new revision."""
        self.write(wait=True)
        if self._changed:
            (newest,) = self._database.execute("SELECT coalesce(max(revision), 0) FROM changes").fetchone()
            rows = [(problem, newest + 1) for problem in self._changed]
            self._database.executemany("INSERT OR REPLACE INTO changes VALUES (?, ?)", rows)

    def write(self, *, wait: bool = False) -> None:
        """Write the last batch, and compress the present one in another thread; with `wait`, write that one too."""
        last, self._compressing = self._compressing, None
        rows, self._rows = self._rows, []
        documents = [row.raw for row in rows]
        if rows and not wait:
            self._compressing = rows, self._pool.submit(_compressed, documents)
        if last is not None:
            self._insert(last[0], last[1].result())
        if rows and wait:
            self._insert(rows, _compressed(documents))

    def _insert(self, rows: Sequence[_NewRow], documents: Sequence[_Compressed]) -> None:
        stored = list(zip(rows, documents, strict=True))
        entries = [(*row.values, document_hash(digest), row.committed) for row, (digest, _) in stored]
        bodies = [(row.problem, row.seq, body) for row, (_, body) in stored]
        self._database.executemany(f"INSERT OR REPLACE INTO entries VALUES ({_MARKS})", entries)  # noqa: S608
        self._database.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", bodies)

    def _add(self, problem: str, file: str, document: Document, *, committed: bool) -> None:
        key = (problem, document.seq)
        if committed and key in self._waiting and self._waiting[key] == document.hash:
            self._database.execute("UPDATE entries SET committed = 1 WHERE problem = ? AND seq = ?", key)
            del self._waiting[key]
            return
        where = f"{file} seq {document.seq}"
        try:
            row: Row = row_of(document.raw, where, partial(self._baseline_of, problem))
        except LedgerError as error:
            reason = " ".join(error.message.split())
            self.messages.append(f"{error.where or where}: {reason}: not in the standings; run `harness audit`")
            return
        if row.problem != problem:
            self.messages.append(f"{where}: an entry of {row.problem} in another problem's file: not in the standings")
            return
        if row.kind == EntryKind.EVALUATION:
            self._cited[problem, row.seq] = row.cites
        elif row.kind == EntryKind.BASELINE:
            self._baselines[problem, row.seq] = _facts(document.raw, where)
        self._changed.add(problem)
        short_ids = map(short_id, (row.problem_digest, row.tree, row.source_hash, row.binary_hash))
        self._rows.append(_NewRow(problem, row.seq, (*row, *short_ids), int(committed), document.raw))

    def _baseline_of(self, problem: str, kind: str, cites: int | None) -> MeasurementFacts | None:
        """Return the facts of the baseline entry of an evaluation, or of the evaluation that a confirmation cites."""
        if kind == EntryKind.CONFIRMATION and cites is not None:
            if (problem, cites) not in self._cited:
                query = "SELECT cites FROM entries WHERE problem = ? AND seq = ? AND kind = 'evaluation'"
                evaluation = self._database.execute(query, (problem, cites)).fetchone()
                self._cited[problem, cites] = evaluation[0] if evaluation else None
            cites = self._cited[problem, cites]
        elif kind != EntryKind.EVALUATION:
            return None
        if cites is None:
            return None
        key = (problem, cites)
        if key not in self._baselines:
            query = "SELECT body FROM documents WHERE problem = ? AND seq = ?"
            body = self._database.execute(query, key).fetchone()
            self._baselines[key] = _facts(zlib.decompress(body[0]), f"{problem} seq {cites}") if body else None
        return self._baselines[key]

    def _forget(self, file: str, message: str) -> None:
        problem = parse_ledger_file(file)
        self.messages.append(message)
        self._changed.add(problem or "")
        self._database.execute("DELETE FROM files WHERE file = ?", (file,))
        self._database.execute("DELETE FROM entries WHERE problem = ? AND committed = 1", (problem,))
        waiting = "SELECT seq FROM entries WHERE problem = :problem"  # the spools hold their documents, which stay
        self._database.execute(
            f"DELETE FROM documents WHERE problem = :problem AND seq NOT IN ({waiting})",  # noqa: S608
            {"problem": problem},
        )


def _facts(raw: bytes, where: str) -> MeasurementFacts | None:
    """Return the facts of a baseline document; None for another kind, or for an unreadable document."""
    try:
        document = parse(raw, where)
    except LedgerError:
        return None
    return facts_of_document(document) if document.get("kind") == EntryKind.BASELINE else None
