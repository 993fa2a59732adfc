"""The ledger as an SQLite index: derived from the coordination branch and the spools, and deletable at any time.

Rows come from the coordination branch's tip and, for documents that it does not hold yet, from the spools. A refresh
reads only appended documents. A file that was rewritten is read again, and an index that cannot be read is rebuilt.
Readers in other processes always see a complete state: an index is rebuilt beside the old one and renamed, and each
refresh is one transaction. There is no write-ahead log, so that an index can be replaced while a process has it open.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from harness.errors import ConfigurationError, LedgerError
from harness.failpoints import failpoint
from harness.formats.ledger_documents import HEADER, parse_entry, split
from harness.git.branch_commits import AppendedFile
from harness.git.repo import Repo
from harness.ledger.entry_rows import ROW_FIELDS, Row
from harness.ledger.index_filling import INDEXES, SCHEMA, TABLES, Progress, update
from harness.ledger.spool import signature
from harness.model.entry import Entry
from harness.model.paths import parse_ledger_file
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock, sync_directory

_BUSY_S = 20.0
"""A refresh or read of another process ends much sooner, also on a busy machine; the index is rebuilt after it."""
_REPEATABLE = (Verdict.PASSED, Verdict.INCORRECT_SHAPE, Verdict.INCORRECT_DTYPE, Verdict.INCORRECT_NUMERICAL)
_MAX_BINARIES = 500
"""Each takes 90 bytes of a request."""
_NAMES = ", ".join(f'"{name}"' for name in ROW_FIELDS)


Values = Sequence[object] | Mapping[str, object]
"""The values of an SQL text's `?` or `:name`."""


class _Stale(Exception):  # noqa: N818 - a signal between two functions of this module
    """The index cannot be updated by a read of the appended documents."""


class Index:
    """One workspace's index. Threads may share it; other processes may read and refresh it meanwhile.

    Args:
        branch: the coordination branch.
    """

    def __init__(self, workspace: Workspace, *, branch: str) -> None:
        self._workspace, self.branch = workspace, branch
        self._path = workspace.index_file
        self._lock = threading.RLock()
        self._open: sqlite3.Connection | None = None
        self._inode = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database file."""
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    def refresh(self, repo: Repo, progress: Progress | None = None, *, patience_s: float | None = None) -> list[str]:
        """Update the index to the coordination branch's tip and the spools.

        Args:
            progress: called with the bytes read so far and the bytes to read.
            patience_s: time to wait for another process' refresh, in seconds; after it, a usable index stays as it is.
                Under load the daemon refreshes almost without a pause. None is no limit.

        Returns:
            Sentences about unusual events: a rebuilt index with the reason, and entries that cannot be read.

        Raises:
            LedgerError: the index cannot be written.
        """
        with self._lock:
            try:
                return self._refresh(repo, progress or (lambda *_: None), patience_s)
            except (OSError, sqlite3.Error) as error:
                raise LedgerError(
                    f"the index cannot be written: {error}",
                    where=str(self._path),
                    remedy="check that the directory is writable and has space; the index can be deleted",
                ) from error

    def expect(self, files: Sequence[AppendedFile]) -> None:
        """Record the documents that a commit is about to append, so that the next refresh does not read the files.

        Without the record, or if no commit follows, a refresh only costs more.
        """
        of_entries = (file for file in files if parse_ledger_file(file.path))
        rows = [(file.path, file.old, file.new, file.bytes, file.sha256, _hashes(file.appended)) for file in of_entries]
        with self._lock, contextlib.suppress(_Stale, sqlite3.Error, ConfigurationError):
            lock = file_lock(self._path.with_name("index.lock"), wait_s=_BUSY_S, owner="index note")
            with lock, self._connection() as database:
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT OR REPLACE INTO appended VALUES (?, ?, ?, ?, ?, ?)", rows)

    def revision(self) -> tuple[int, int]:
        """Return the database file's inode, and a number that each change of the entries increases."""
        rows = self.query("SELECT coalesce(max(revision), 0) FROM changes")
        return self._inode, int(rows[0][0])

    def changed_since(self, revision: tuple[int, int]) -> set[str] | None:
        """Return the problems whose entries have changed since a revision; None if the index was rebuilt since."""
        rows = self.query("SELECT problem FROM changes WHERE revision > ?", (revision[1],))
        return {str(problem) for (problem,) in rows} if revision[0] == self._inode else None

    def find(self, problem_digest: str, tree: str, target: str, judge: str) -> Row | None:
        """Return the evaluation with a key, or None.

        Args:
            tree: git tree id of the solution directory.
            judge: the judge version.
        """
        where = "tree = ? AND problem_digest = ? AND target = ? AND judge = ? AND kind = 'evaluation'"
        return self._first(f"WHERE {where} LIMIT 1", (tree, problem_digest, target, judge))

    def has_older_protocol(self, run: str, protocol: int) -> bool:
        """Return true if a run has entries of an earlier judge protocol.

        Args:
            protocol: the present judge protocol.
        """
        return bool(self.query("SELECT 1 FROM entries WHERE run = ? AND judge_protocol < ? LIMIT 1", (run, protocol)))

    def binaries(self, problem: str, problem_digest: str, target: str, judge: str, run: str) -> dict[str, Row]:
        """Return the measured evaluations of a run's sealed candidates by binary, for the newest 500 binaries.

        Only verdicts that depend on nothing but the launched code are included: other candidates are judged again.
        Entries that repeat a measurement are excluded.

        Args:
            judge: the judge version.
        """
        where = "problem = ? AND problem_digest = ? AND target = ? AND judge = ? AND run = ? AND kind = 'evaluation'"
        repeatable = ", ".join(f"'{verdict}'" for verdict in _REPEATABLE)
        query = (
            f"WHERE {where} AND language = 'cuda' AND binary_hash IS NOT NULL AND answered_from IS NULL "
            f"AND verdict IN ({repeatable}) ORDER BY seq DESC LIMIT {_MAX_BINARIES}"
        )
        rows = self.select(query, (problem, problem_digest, target, judge, run))
        return {row.binary_hash: row for row in rows if row.binary_hash}

    def find_baseline(self, problem: str, problem_digest: str, target: str, judge: str) -> Row | None:
        """Return the latest baseline entry of a form of a problem, or None.

        Args:
            judge: the judge version.
        """
        where = "problem = ? AND problem_digest = ? AND target = ? AND judge = ? AND kind = 'baseline'"
        return self._first(f"WHERE {where} ORDER BY seq DESC LIMIT 1", (problem, problem_digest, target, judge))

    def rows(
        self,
        problem: str | None = None,
        *,
        run: str | None = None,
        kind: str | None = None,
        target: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """Return entries without their workloads, oldest first. None means any value.

        Args:
            kind: the entry's kind, a value of `EntryKind`.
            limit: the number of the newest entries to return.
        """
        filters = {"problem": problem, "run": run, "kind": kind, "target": target}
        set_filters = {name: value for name, value in filters.items() if value is not None}
        where = f"WHERE {' AND '.join(f'{name} = ?' for name in set_filters)}" if set_filters else ""
        order = "seq DESC" if problem else "at DESC, problem DESC, seq DESC"
        query = f"{where} ORDER BY {order} LIMIT ?"
        return self.select(query, (*set_filters.values(), -1 if limit is None else limit))[::-1]

    def row(self, problem: str, seq: int) -> Row | None:
        """Return one entry without its workloads, or None.

        Args:
            seq: the entry's number in its file.
        """
        return self._first("WHERE problem = ? AND seq = ?", (problem, seq))

    def entry(self, problem: str, seq: int) -> Entry | None:
        """Return one whole entry, or None.

        Args:
            seq: the entry's number in its file.
        """
        rows = self.query("SELECT body FROM documents WHERE problem = ? AND seq = ?", (problem, seq))
        return parse_entry(zlib.decompress(rows[0][0]), f"{problem} seq {seq}") if rows else None

    def count(self, *, run: str | None = None, kind: str | None = None) -> int:
        """Return the number of entries. None means any value.

        Args:
            kind: the entry's kind, a value of `EntryKind`.
        """
        where = "(:run IS NULL OR run = :run) AND (:kind IS NULL OR kind = :kind)"
        return int(self.query(f"SELECT count(*) FROM entries WHERE {where}", {"run": run, "kind": kind})[0][0])  # noqa: S608

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL query on the tables `entries` (columns: `Row`'s fields) and `documents`.

        Args:
            values: the values of the query's `?` or `:name`.

        Raises:
            LedgerError: there is no index yet, or it cannot be read; `refresh` makes it.
        """
        with self._lock:
            try:
                return self._connection().execute(sql, values).fetchall()
            except (sqlite3.Error, OSError, _Stale) as error:
                raise LedgerError(
                    f"the ledger's index cannot be read: {str(error) or 'the file is missing'}",
                    where=str(self._path),
                    remedy="`harness status` rebuilds it from the ledger",
                ) from error

    def select(self, clause: str, values: Values) -> list[Row]:
        """Return the rows that an SQL clause selects.

        Args:
            clause: the text after `SELECT … FROM entries`.
            values: the values of the clause's `?` or `:name`.
        """
        sql = f"SELECT {_NAMES} FROM entries {clause}"  # noqa: S608 - the index' own column names
        return [Row(*columns) for columns in self.query(sql, values)]

    def _first(self, clause: str, values: Values) -> Row | None:
        return next(iter(self.select(clause, values)), None)

    def _connection(self) -> sqlite3.Connection:
        """Return the database, opened again if another process has replaced it.

        Raises:
            _Stale: it is missing or has another schema.
        """
        inode = self._path.stat().st_ino if self._path.exists() else 0
        if self._open is not None and inode == self._inode:
            return self._open
        self.close()
        if not inode:
            raise _Stale
        self._open, self._inode = _connect(self._path), inode
        try:
            schema_rows = self._open.execute("SELECT value FROM meta WHERE name = 'schema'").fetchall()
        except sqlite3.DatabaseError as error:
            self.close()
            raise _Stale(str(error)) from error
        if schema_rows != [(SCHEMA,)]:
            self.close()
            raise _Stale(f"its schema is `{schema_rows[0][0] if schema_rows else 'none'}`, not `{SCHEMA}`")
        return self._open

    def _refresh(self, repo: Repo, progress: Progress, patience_s: float | None) -> list[str]:
        usable = False
        with contextlib.suppress(_Stale, sqlite3.DatabaseError):
            state = {"tip": repo.tip(self.branch), "spool": signature(self._workspace.spool)}
            if dict(self._connection().execute("SELECT name, value FROM meta")).items() >= state.items():
                return []
            usable = patience_s is not None
        wait_s = patience_s if usable else None
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(self._path.with_name("index.lock"), wait_s=wait_s, owner="index refresh"))
            except ConfigurationError:  # another process refreshes the index, and the caller accepts the present one
                return []
            return self._refresh_alone(repo, progress)

    def _refresh_alone(self, repo: Repo, progress: Progress) -> list[str]:
        try:
            with self._connection() as database:
                database.execute("BEGIN IMMEDIATE")
                messages = update(database, self._workspace, repo, self.branch, progress)
                failpoint("index.before_commit")
        except (_Stale, sqlite3.DatabaseError) as error:
            self.close()
            reason = f"the ledger's index could not be used ({error}): rebuilt from the ledger"
            messages = [reason] if self._path.exists() else []
            messages += self._rebuild(repo, progress)
        failpoint("index.after_commit")
        return messages

    def _rebuild(self, repo: Repo, progress: Progress) -> list[str]:
        """Build an index beside the old one, then replace the old one."""
        beside = self._path.with_name("index.rebuilding.sqlite")
        _remove(beside)
        failpoint("index.before_rebuild")
        database = _connect(beside)
        try:
            database.execute("PRAGMA synchronous = OFF")  # until the commit: the remains of a crash are discarded
            database.execute("PRAGMA cache_size = -65536")
            database.executescript(TABLES)
            database.execute("BEGIN")
            database.execute("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA,))
            messages = update(database, self._workspace, repo, self.branch, progress)
            for statement in filter(str.strip, INDEXES.split(";")):  # `executescript` would commit first
                database.execute(statement)
            failpoint("index.rebuild_before_commit")
            database.execute("COMMIT")
        except BaseException:
            database.close()
            with contextlib.suppress(OSError):
                _remove(beside)
            raise
        database.close()
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        sync_directory(beside.parent)
        failpoint("index.rebuilt_beside")
        _remove(self._path)  # with its journal, which must not apply to the new file
        failpoint("index.old_removed")
        beside.replace(self._path)
        failpoint("index.replaced")
        return messages


def _hashes(appended: bytes) -> str:
    """Return `seq hash seq hash …` of the documents that are appended to a file."""
    return " ".join(f"{document.seq} {document.hash}" for document in split(HEADER + appended, "appended"))


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    database.execute(f"PRAGMA busy_timeout = {int(_BUSY_S * 1000)}")
    return database


def _remove(path: Path) -> None:
    for name in (path.name, f"{path.name}-journal", f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
