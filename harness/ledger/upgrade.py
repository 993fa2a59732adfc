"""Upgrade a ledger to the newest format, without rewriting a document.

The format of a ledger is in the head line of heads.yaml. Documents keep their format and their bytes, so that every
hash and every head in git's history stays valid. An upgrade raises the format of heads.yaml and commits the documents
that an earlier harness left in the spool, both in one commit; new documents then have the new format.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import get_args

from harness.formats.ledger_documents import Document, split
from harness.git.branch_commits import Change, Read
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Writer, documents_change, ledger_contents, ledger_format, open_spool
from harness.ledger.spool import Record, read_all, read_segment, still_to_commit
from harness.model.entry import LEDGER_FORMAT
from harness.model.paths import HEADS
from harness.model.printable import count_of
from harness.workspace.directories import CONFIG_NAME, Workspace


@dataclass(frozen=True)
class UpgradedFile:
    """A file and its change by an upgrade."""

    file: str
    change: str


@dataclass(frozen=True)
class LedgerUpgrade:
    """The result of an upgrade; with `dry_run`, the expected result."""

    branch: str
    before: int
    after: int
    commit: str | None
    """The upgrade's commit; null if no upgrade was necessary, and for a dry run."""
    files: tuple[UpgradedFile, ...] = ()

    @property
    def is_outdated(self) -> bool:
        """True if the ledger had an earlier format."""
        return self.before < self.after


def upgrade_ledger(workspace: Workspace, repo: Repo, branch: str, *, dry_run: bool = False) -> LedgerUpgrade:
    """Upgrade the ledger on the coordination branch; one of the newest format is not changed.

    The caller prevents the start of `harness start` meanwhile. After a kill at any point, the upgrade can be repeated.

    Args:
        workspace: the workspace of the ledger.
        repo: the workspace's repository.
        branch: the coordination branch.
        dry_run: return the expected result and change nothing.

    Raises:
        ConfigurationError: a daemon or planner has the ledger open.
        LedgerError: the ledger is of a newer format, or the spool does not continue the branch's files.
        RepositoryError: git could not commit.
    """
    before = ledger_format(repo, repo.tip(branch))
    if before == LEDGER_FORMAT:
        return LedgerUpgrade(branch, before, LEDGER_FORMAT, None)
    if dry_run:
        files = _report(workspace, repo, branch, before, read_all(workspace.spool))
        return LedgerUpgrade(branch, before, LEDGER_FORMAT, None, files)
    with ExitStack() as stack:
        spools = [open_spool(workspace, writer, "harness ledger upgrade", stack) for writer in get_args(Writer)]
        closed = [spool.close_segment() for spool in spools]
        records = [record for paths in closed for path in paths for record in read_segment(path)]
        files = _report(workspace, repo, branch, before, records)

        def build(read: Read) -> Change:
            return documents_change(read, records, LEDGER_FORMAT)

        commit = repo.commit_built(branch, build, f"Upgrade the ledger from format {before} to format {LEDGER_FORMAT}")
        for spool, paths in zip(spools, closed, strict=True):
            spool.drop(paths)
    with Index(workspace, branch=branch) as index:
        index.refresh(repo)
    return LedgerUpgrade(branch, before, LEDGER_FORMAT, commit, files)


def _report(
    workspace: Workspace, repo: Repo, branch: str, before: int, spooled: list[Record]
) -> tuple[UpgradedFile, ...]:
    """Return the change of each file by the upgrade."""
    contents = ledger_contents(repo, repo.tip(branch))
    contents.pop(HEADS, None)
    changes = [UpgradedFile(HEADS, f"format {before} becomes format {LEDGER_FORMAT}")]
    for name in sorted({*contents, *(record.file for record in spooled)}):
        content = contents.get(name)
        documents = split(content or b"", name)
        waiting = still_to_commit(name, [record for record in spooled if record.file == name], content)
        changes.append(UpgradedFile(name, _document_counts(documents, len(waiting))))
    if workspace.index_file.exists():
        changes.append(
            UpgradedFile(str(workspace.index_file.relative_to(workspace.root)), "read again from the ledger")
        )
    changes.append(UpgradedFile(CONFIG_NAME, "is the same in both formats"))
    return tuple(changes)


def _document_counts(documents: list[Document], waiting: int) -> str:
    sentence = f"{count_of(len(documents), 'document keeps its', 'documents keep their')} bytes"
    return f"{sentence}; {waiting} from the spool committed" if waiting else sentence
