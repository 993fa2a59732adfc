"""Answers that the ledger cannot store yet wait in order and are entered later; no answer is entered twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.daemon import recorder as recorder_module
from harness.daemon.recorder import Recorder
from harness.daemon.status_writer import StatusWriter
from harness.errors import LedgerError, RepositoryError
from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from harness.model.entry import Entry, EntryDraft
from harness.model.process_status import DaemonStatus
from harness.model.verdict import EntryKind
from tests.site import Site, git


def draft(note: str) -> EntryDraft:
    return EntryDraft(
        kind=EntryKind.NOTE, run="main", problem="t/one", problem_digest="sha256:0", target="cpu", note=note
    )


class Refusing:
    """A ledger's `append` that fails `times` times as on a full disk."""

    def __init__(self, ledger: Ledger, times: int) -> None:
        self._append = ledger.append
        self._times = times

    def __call__(self, entry_draft: EntryDraft) -> Entry:
        if self._times:
            self._times -= 1
            raise LedgerError("no space left", where="spool", remedy="free some space")
        return self._append(entry_draft)


@pytest.fixture
def ledger(site: Site) -> Iterator[Ledger]:
    with Repo(site.workspace) as repo:
        opened = Ledger(site.workspace, repo, branch="main")
        yield opened
        opened.close()


def test_answers_are_held_in_order_and_entered_when_the_disk_has_space(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "FIRST_PAUSE_S", 0.0)
    status = StatusWriter(site.workspace)
    recorder = Recorder(site.workspace, ledger, status)
    monkeypatch.setattr(ledger, "append", Refusing(ledger, times=3))
    entered: list[str | None] = []
    for note in ("first", "second", "third"):
        recorder.enter(draft(note), lambda entry: entered.append(entry.note))
    assert (recorder.unwritten, entered) == (3, [])
    assert recorder.next_retry() is not None
    for _ in range(3):
        recorder.retry(force=True)
    assert (recorder.unwritten, entered) == (0, ["first", "second", "third"])
    assert recorder.next_retry() is None
    assert [entry.note for entry in site.entries()] == ["first", "second", "third"]


def test_a_retry_waits_for_its_time(site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(site.workspace, ledger, StatusWriter(site.workspace))
    monkeypatch.setattr(ledger, "append", Refusing(ledger, times=1))
    entered: list[Entry] = []
    recorder.enter(draft("note"), entered.append)
    recorder.retry()
    assert not entered
    recorder.retry(force=True)
    assert len(entered) == 1


def test_entering_again_from_what_follows_keeps_the_order(site: Site, ledger: Ledger) -> None:
    recorder = Recorder(site.workspace, ledger, StatusWriter(site.workspace))
    recorder.enter(draft("first"), lambda _: recorder.enter(draft("second"), lambda _: None))
    assert [entry.note for entry in site.entries()] == ["first", "second"]


def test_a_commit_that_git_refuses_is_reported_and_tried_again(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = StatusWriter(site.workspace)
    recorder = Recorder(site.workspace, ledger, status)
    recorder.enter(draft("note"), lambda _: None)

    def refuse(*, force: bool = False) -> str:
        del force
        raise RepositoryError("main is being rebased")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "flush", refuse)
        recorder.flush()
        with pytest.raises(RepositoryError):
            recorder.flush(force=True)
    recorder.flush(force=True)
    assert "note" in git(site.root, "show", "main:ledger/t/one.yaml")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [RuntimeError("unexpected"), SystemExit(1)])
def test_an_unexpected_end_of_the_commit_thread_is_reported_and_the_entries_are_committed_again(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.chdir(site.root)
    monkeypatch.setattr(recorder_module, "LONGEST_PAUSE_S", 0.0)
    status = StatusWriter(site.workspace)
    recorder = Recorder(site.workspace, ledger, status)
    recorder.enter(draft("note"), lambda _: None)

    def crash(*, force: bool = False) -> str:
        del force
        raise error

    monkeypatch.setattr(Ledger, "is_flush_due", property(lambda _: True))
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "flush", crash)
        recorder.flush()
        recorder.close()
    recorder.flush()  # joins the failed thread, reports it, and starts the next commit
    record = status.write(DaemonStatus(pid=1), force=True)
    recorder.close()
    assert record is not None
    [message] = record.messages
    assert message.startswith("entries cannot be committed now")
    reports = list(site.workspace.crashes.glob("crash-*.txt"))
    assert len(reports) == isinstance(error, Exception)
    assert all(str(report) in message for report in reports)
    assert "note" in git(site.root, "show", "main:ledger/t/one.yaml")
