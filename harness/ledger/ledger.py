"""The ledger's only entry point: documents go to the spool immediately, and to the coordination branch in batches.

There are two writers, which never write the same file: the daemon (`ledger/<suite>/<name>.yaml`) and the planner
(`ledger/decisions.yaml`, `ledger/accounts.yaml`, `ledger/lessons/…`). Both rewrite their lines of `ledger/heads.yaml`,
from the branch's content at the time of the commit.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Literal, Self

from harness.errors import LedgerError
from harness.failpoints import failpoint
from harness.formats.ledger_documents import HEADER, Document, parse, render, render_entry, split
from harness.formats.ledger_heads import head_of, heads_of, read_heads, render_heads
from harness.git.branch_commits import BeforeMove, Change, Read
from harness.git.repo import Repo
from harness.ledger.spool import Record, Spool, read_all, read_segment, still_to_commit
from harness.model.entry import LEDGER_FORMAT, Entry, EntryDraft, stamp
from harness.model.paths import HEADS, LEDGER, is_planner_file, ledger_file
from harness.model.printable import count_of
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock

Writer = Literal["daemon", "planner"]
_FLUSH_EVERY_S = 60.0
_PAUSE_FACTOR = 10.0
"""A commit writes each changed ledger file whole: a large ledger is committed less often, a tenth of the time."""
_LONGEST_PAUSE_S = 600.0


class Ledger:
    """One writer's ledger, between opening and closing. Threads may share it.

    Opening takes the writer's lock and recovers: it cuts a torn tail, and drops spooled documents that the branch
    already holds. Leaving the `with` block without an exception commits the spooled documents.

    Args:
        writer: `daemon` or `planner`.
        branch: the coordination branch.
        clock: returns the present time, in UTC.
        flush_every_s: least time between two commits in seconds, unless forced; longer after a slow commit.
        before_move: called with the files that a commit appends to, before the branch moves.

    Raises:
        ConfigurationError: another process is this writer.
        LedgerError: the spool cannot be written, or does not fit the branch.
    """

    def __init__(
        self,
        workspace: Workspace,
        repo: Repo,
        *,
        writer: Writer = "daemon",
        branch: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        flush_every_s: float = _FLUSH_EVERY_S,
        before_move: BeforeMove | None = None,
    ) -> None:
        self._workspace, self._repo, self._writer = workspace, repo, writer
        self._branch, self._clock, self._flush_every_s, self._before_move = branch, clock, flush_every_s, before_move
        self._appending, self._flushing = threading.Lock(), threading.Lock()
        self._flush_at = -float("inf")
        self.commits, self.commit_s = 0, 0.0
        """Number of commits of this object, and duration of the last one in seconds."""
        self._behind = False
        self.recovered: list[str] = []
        """Sentences about repairs during opening, and about clocks that have stepped back since."""
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush(force=True)
        finally:
            self.close()

    def close(self) -> None:
        """Release the writer's lock. Spooled documents stay for the next opening."""
        self._stack.close()

    def append(self, draft: EntryDraft) -> Entry:
        """Enter a judgement, which is on disk after the return.

        Raises:
            LedgerError: the disk is full or the spool cannot be written; no part of the entry is stored.
        """
        if self._writer != "daemon":
            raise LedgerError(f"the {self._writer} enters records, not entries")
        file = ledger_file(draft.problem)
        with self._appending:
            seq, prev, at = self._place(file)
            entry = Entry.model_validate({**dict(draft), "seq": seq, "prev": prev, "at": at})
            self._spool_record(Record(render_entry(entry), file=file))
        return entry

    def append_record(self, file: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Enter a document of the planner, which is on disk after the return.

        Args:
            file: `ledger/decisions.yaml`, `ledger/accounts.yaml` or below `ledger/lessons/`.
            record: plain values; without `format`, `seq`, `prev` and `at`, which the ledger sets.

        Raises:
            LedgerError: the file is not one of those, or as for `append`.
        """
        if self._writer != "planner" or not is_planner_file(file):
            raise LedgerError(f"the {self._writer} does not write {file}")
        reserved = [key for key in ("format", "seq", "prev", "at") if key in record]
        if reserved:
            raise LedgerError(f"a record must not have {', '.join(reserved)}: the ledger sets it", where=file)
        with self._appending:
            seq, prev, at = self._place(file)
            document = {"format": LEDGER_FORMAT, "seq": seq, "prev": prev, **record, "at": at}
            self._spool_record(Record(render(document), file=file))
        return document

    @property
    def is_flush_due(self) -> bool:
        """True if `flush` would commit the spooled documents."""
        return time.monotonic() >= self._flush_at

    def refresh_checkout(self) -> None:
        """Refresh the files of the checkout that could not be refreshed at an earlier commit."""
        self._repo.refresh_checkout(self._branch)

    def flush(self, *, force: bool = False) -> str | None:
        """Commit the spooled documents to the coordination branch, at most once a minute unless forced.

        Returns:
            The commit's id, or None if no commit was due.

        Raises:
            RepositoryError: git could not commit. The spool keeps the documents for a later flush.
            LedgerError: the spool does not continue the branch's files.
        """
        with self._flushing:
            start_s = time.monotonic()
            if not force and start_s < self._flush_at:
                return None
            with self._appending:
                closed = self._spool.close_segment()
            records = [record for path in closed for record in read_segment(path)]
            commit = self._commit(records) if records else None
            self._spool.drop(closed)
            if records:
                self.commits, self.commit_s = self.commits + 1, time.monotonic() - start_s
                self._flush_at = start_s + max(
                    self._flush_every_s, min(_PAUSE_FACTOR * self.commit_s, _LONGEST_PAUSE_S)
                )
            failpoint("ledger.after_flush")
            return commit

    def _open(self, stack: ExitStack) -> None:
        self._spool = open_spool(self._workspace, self._writer, f"harness {self._writer} (ledger)", stack)
        self.recovered += self._spool.recovered
        cut = self._repo.lost_appends(self._branch)
        if cut:  # an empty change: the repository restores the ends
            self._repo.commit_files(self._branch, {}, f"Put back the ends of {len(cut)} ledger files")
            self.recovered.append(f"{self._branch} had been reset past ledger entries: restored in {', '.join(cut)}")
        tip = self._repo.tip(self._branch)
        heads = self._repo.read(tip, HEADS)
        self._heads = heads_of(ledger_contents(self._repo, tip).items()) if heads is None else read_heads(heads)
        self._recover(tip)
        failpoint("ledger.after_open")

    def _recover(self, tip: str) -> None:
        """Drop segments that a crash left after their commit, and set the heads from the others."""
        closed = {path: read_segment(path) for path in self._spool.close_segment()}
        records = [record for segment in closed.values() for record in segment]
        fresh: set[str] = set()
        for file, group in _by_file(records).items():
            waiting = still_to_commit(file, group, self._repo.read(tip, file))
            fresh |= {record.hash for record in waiting}
            if waiting:
                self._heads[file] = head_of(waiting[-1].raw, file)
        committed = [path for path, segment in closed.items() if not any(record.hash in fresh for record in segment)]
        if committed:
            failpoint("ledger.before_recovery_drop")
            self._spool.drop(committed)
        if len(records) > len(fresh):
            self.recovered.append(
                f"{len(records) - len(fresh)} spooled ledger documents were already on {self._branch} (a crash between "
                "their commit and the deletion from the spool): not entered again"
            )
        if fresh:
            self.recovered.append(f"{len(fresh)} ledger documents wait in the spool; the next flush commits them")

    def _place(self, file: str) -> tuple[int, str | None, str]:
        """Return `seq`, `prev` and `at` of the next document of a file."""
        head = self._heads.get(file)
        present = stamp(self._clock())
        latest = max((former.at for former in self._heads.values()), default=present)
        if present < latest and not self._behind:
            self.recovered.append(
                f"the clock shows {present}, before the ledger's last entry ({latest}): entries keep that time until "
                "the clock has caught up. Check the clock: `timedatectl`"
            )
        self._behind = present < latest
        at = max(present, latest)
        return (head.seq + 1, head.hash, at) if head else (1, None, at)

    def _spool_record(self, record: Record) -> None:
        failpoint("ledger.before_append")
        self._spool.append(record)
        self._heads[record.file] = head_of(record.raw, record.file)
        failpoint("ledger.after_append")

    def _commit(self, records: list[Record]) -> str:
        def build(read: Read) -> Change:
            change = _documents_change(read, records)
            return change if change.appends else Change()

        failpoint("ledger.before_commit")
        try:
            commit = self._repo.commit_built(self._branch, build, _message(records), before_move=self._before_move)
        except OSError as error:
            raise LedgerError(
                f"spooled entries cannot be committed to {self._branch} ({error.strerror or error})",
                where=str(error.filename or self._workspace.git_common_dir),
                remedy="the spool keeps them. Free some space or make the repository writable; "
                "the next flush tries again",
            ) from error
        failpoint("ledger.after_commit")
        return commit


def open_spool(workspace: Workspace, writer: Writer, owner: str, stack: ExitStack) -> Spool:
    """Take a writer's lock and open its spool, until `stack` is closed.

    Args:
        writer: `daemon` or `planner`.
        owner: a description of this process, for the error message in others.
        stack: releases the lock.

    Raises:
        ConfigurationError: another process is this writer.
        LedgerError: the spool cannot be written.
    """
    directory = workspace.spool / writer
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(
            f"the ledger's spool cannot be created ({error.strerror})",
            where=str(directory),
            remedy=f"make it writable for this user: `ls -ld '{workspace.git_common_dir}'` shows who may",
        ) from error
    stack.enter_context(file_lock(directory / "lock", owner=owner))
    failpoint("ledger.after_lock")
    spool = Spool(directory)
    stack.callback(spool.close_segment)
    return spool


def _documents_change(read: Read, records: list[Record]) -> Change:
    """Return the change that commits the spooled documents that the branch, read by `read`, does not hold."""
    heads = read_heads(read(HEADS))
    appends: dict[str, bytes] = {}
    for file, group in _by_file(records).items():
        content = read(file)
        fresh = still_to_commit(file, group, content)
        if fresh:
            appends[file] = b"".join([b"" if content else HEADER, *(record.raw for record in fresh)])
            heads[file] = head_of(fresh[-1].raw, file)
    return Change({HEADS: render_heads(heads)}, appends)


def ledger_contents(repo: Repo, commit: str) -> dict[str, bytes]:
    """Return file -> content of the ledger's files in a commit, heads.yaml included.

    Args:
        commit: a commit id.
    """
    return repo.read_many(commit, [file for file in repo.files(commit, LEDGER) if file.endswith(".yaml")])


def read_documents(workspace: Workspace, repo: Repo, file: str, *, branch: str) -> list[Document]:
    """Return every document of a ledger file, committed or spooled, oldest first, as bytes.

    Args:
        branch: the coordination branch.
    """
    # The spool first: a document that a flush moves meanwhile is then read twice, never missed.
    spooled = [record for record in read_all(workspace.spool) if record.file == file]
    content = repo.read(repo.tip(branch), file)
    committed = split(content or b"", file)
    committed_hashes = {document.hash for document in committed}
    return [*committed, *(record for record in spooled if record.hash not in committed_hashes)]


def read_records(workspace: Workspace, repo: Repo, file: str, *, branch: str) -> list[dict[str, Any]]:
    """Return every document of a ledger file as a mapping: the planner's decisions, accounts and lessons.

    Args:
        branch: the coordination branch.
    """
    return [parse(document.raw, file) for document in read_documents(workspace, repo, file, branch=branch)]


def _by_file(records: list[Record]) -> dict[str, list[Record]]:
    """Return the records by ledger file, in order; a record that two segments hold counts once."""
    groups: dict[str, dict[str, Record]] = {}
    for record in records:
        groups.setdefault(record.file, {})[record.hash] = record
    return {file: list(group.values()) for file, group in groups.items()}


def _message(records: list[Record]) -> str:
    counts = Counter(record.file.removeprefix(f"{LEDGER}/").removesuffix(".yaml") for record in records)
    lines = [f"{name}: {count}" for name, count in sorted(counts.items())[:40]]
    return "\n".join([f"Enter {count_of(len(records), 'ledger document')}", "", *lines])
