"""Refreshes of the index: they read what is new, once, and report what was rewritten."""

from __future__ import annotations

import threading

import pytest

from harness.errors import LedgerError
from harness.formats.ledger_documents import render, render_entry
from harness.git.branch_commits import AppendedFile
from harness.git.repo import Repo
from harness.ledger.entry_rows import BaselineOf, row_of
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.paths import ledger_file
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock
from tests.ledger.ledgers import PROBLEM, draft, fill, git, ticking

FILE = ledger_file(PROBLEM)


def test_only_what_was_appended_is_read(
    ledger: Ledger, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    index.refresh(repo)
    parsed: list[str] = []
    from harness.ledger import index_filling

    def counted(raw: bytes, where: str, baseline_of: BaselineOf) -> object:
        parsed.append(where)
        return row_of(raw, where, baseline_of)

    monkeypatch.setattr(index_filling, "row_of", counted)
    ledger.append(draft())
    ledger.flush(force=True)
    assert index.refresh(repo) == []
    assert parsed == [f"{FILE} seq 4"]
    ledger.append(draft())
    index.refresh(repo)
    ledger.flush(force=True)
    index.refresh(repo)
    assert parsed == [f"{FILE} seq 4", f"{FILE} seq 5"]  # read from the spool before, so not read again from the branch
    assert index.count() == 5


def test_an_unreadable_entry_is_one_line_without_the_remedy(
    ledger: Ledger, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_raw: bytes, where: str, _baseline_of: BaselineOf) -> object:
        raise LedgerError("the document has\nformat 3", where=where, remedy="install a newer one")

    monkeypatch.setattr("harness.ledger.index_filling.row_of", unreadable)
    fill(ledger, 1)
    ledger.flush(force=True)
    assert index.refresh(repo) == [
        f"{FILE} seq 1: the document has format 3: not in the standings; run `harness audit`"
    ]


def test_a_reader_without_a_wait_reads_the_index_while_another_refreshes_it(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    index.refresh(repo, patience_s=0)
    fill(ledger, 2)
    with file_lock(workspace.index_file.with_name("index.lock"), owner="another process"):
        assert index.refresh(repo, patience_s=0) == []
        assert index.count() == 3
    assert index.refresh(repo, patience_s=0) == []
    assert index.count() == 5


def test_readers_in_threads_while_it_grows(ledger: Ledger, index: Index, repo: Repo) -> None:
    index.refresh(repo)
    sizes: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            sizes.append(index.count())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        ledger.append(draft())
        index.refresh(repo)
    done.set()
    reader.join(timeout=120)
    assert sizes == sorted(sizes)
    assert index.count() == 10


def test_a_rewritten_file_is_read_again_and_reported(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    index.refresh(repo)
    path = workspace.root / FILE
    path.write_text(path.read_text().replace('worker: "w01"', 'worker: "w99"'))
    git(workspace.root, "commit", "-q", "-am", "tamper")
    assert index.refresh(repo) == [f"{FILE} was rewritten, not appended to: `harness audit` shows the difference"]
    assert {row.worker for row in index.rows()} == {"w99"}


def test_a_rewritten_file_leaves_the_documents_of_entries_in_the_spool(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    spooled = ledger.append(draft())
    index.refresh(repo)
    path = workspace.root / FILE
    path.write_text(path.read_text().replace('worker: "w01"', 'worker: "w99"', 1))
    git(workspace.root, "commit", "-q", "-am", "tamper")
    index.refresh(repo)
    assert index.entry(PROBLEM, spooled.seq) == spooled


def test_a_file_cut_by_a_reset_keeps_its_rows_until_it_is_put_back(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    ledger.append(draft(problem="starter/swiglu"))
    ledger.append(draft())
    ledger.flush(force=True)
    index.refresh(repo)
    git(workspace.root, "reset", "-q", "--hard", "main~1")
    assert index.refresh(repo) == []
    assert index.count() == 5
    ledger.append(draft())
    ledger.flush(force=True)
    assert index.refresh(repo) == []
    assert [row.seq for row in index.rows(PROBLEM)] == [1, 2, 3, 4, 5]


def test_a_document_that_cannot_be_read_is_named_and_left_out(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    path = workspace.root / FILE
    with path.open("ab") as file:
        file.write(render({"seq": 4, "prev": None, "at": "never"}))
        file.write(render_entry(ledger.append(draft(problem="starter/swiglu"))))
    git(workspace.root, "commit", "-q", "-am", "append by hand")
    messages = index.refresh(repo)
    assert len(messages) == 2
    assert messages[0].startswith(f"{FILE} seq 4: not a ledger entry: KeyError('problem')")
    assert messages[1].startswith(f"{FILE} seq 1: an entry of starter/swiglu in another problem's file")
    assert [row.seq for row in index.rows(PROBLEM)] == [1, 2, 3]


def test_a_deleted_spooled_record_leaves_the_index(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    index.refresh(repo)
    for path in (workspace.spool / "daemon").glob("*.spool"):
        path.unlink()
    index.refresh(repo)
    assert index.rows() == []


def test_progress_comes_to_its_end(ledger: Ledger, index: Index, repo: Repo) -> None:
    fill(ledger, 5)
    ledger.flush(force=True)
    progress_calls: list[tuple[int, int]] = []
    index.refresh(repo, lambda done, of: progress_calls.append((done, of)))
    assert progress_calls[-1][0] == progress_calls[-1][1] > 5000


def test_what_a_commit_appends_is_not_read_again(
    workspace: Workspace, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(workspace, repo, branch="main", clock=ticking(), before_move=index.expect) as ledger:
        fill(ledger)
        index.refresh(repo)
        ledger.flush(force=True)
        assert index.refresh(repo) == []
        fill(ledger, 2)
        index.refresh(repo)
        ledger.flush(force=True)
        with Index(workspace, branch="main") as second_index, monkeypatch.context() as patched:
            patched.setattr(Repo, "read", lambda *_: pytest.fail("a ledger file was read"))
            assert second_index.refresh(repo) == []
        assert index.query("SELECT committed, count(*) FROM entries GROUP BY committed") == [(1, 5)]
        assert index.query("SELECT * FROM appended") == []
        # The index has the file's digest too, so it treats an append by another writer as an append, not as a rewrite.
        fill(ledger, 1)
    index.query("SELECT 1")
    assert index.refresh(repo) == []
    assert index.count() == 6


def test_a_note_of_a_commit_that_was_not_made_changes_nothing(workspace: Workspace, index: Index, repo: Repo) -> None:
    with Ledger(workspace, repo, branch="main", clock=ticking()) as ledger:
        fill(ledger)
        ledger.flush(force=True)
        index.refresh(repo)
        fill(ledger, 1)
        blob = repo.tree_of(repo.tip("main"), FILE) or ""
        index.expect([AppendedFile(FILE, blob, "1" * 40, b"", 7, "0" * 64)])
        assert index.refresh(repo) == []
        assert index.query("SELECT committed, count(*) FROM entries GROUP BY committed") == [(0, 1), (1, 3)]
    assert index.refresh(repo) == []
    assert index.query("SELECT committed, count(*) FROM entries GROUP BY committed") == [(1, 4)]
